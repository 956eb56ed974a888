"""One file per single-device option: `Workload -> Workload`. An option knows no other option, no cost and no search."""

"""What a trace takes on a device: memory, time, communication. Plain numbers; every rate names its source."""

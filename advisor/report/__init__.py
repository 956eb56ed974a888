"""Results -> `Report` (the waist: everything above reads only this) -> neutral sections -> text. No torch.

Conversions out of SI units (GiB, ms, TFLOP/s) happen here and nowhere above.
"""

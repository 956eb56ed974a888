"""Where the user files of the tests are."""

from pathlib import Path

MODELS = Path(__file__).parent / "models"

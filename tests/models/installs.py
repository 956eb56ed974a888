import subprocess
import sys

try:
    import no_such_package_of_ours
except ImportError:
    subprocess.check_call([sys.executable, "-m", "pip", "install", "no-such-package-of-ours"])
    import no_such_package_of_ours  # noqa: F401

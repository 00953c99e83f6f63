"""Ends a tool with a message where the Python that runs it lacks packages, as another one that is before Debian's on the path may."""

import importlib.util
import shlex
import sys

PACKAGES = {"h5py": "h5py", "numpy": "numpy", "PIL": "pillow"}

if missing := [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]:
    print(f"{sys.argv[0]}: {sys.executable} lacks the Python packages {', '.join(missing)}. Use Debian's Python, for which "
          f"scripts/quickstart.sh installs them:\n  /usr/bin/python3 {shlex.join(sys.argv)}\nor install them:\n"
          f"  {sys.executable} -m pip install {' '.join(missing)}", file=sys.stderr)  # fmt: skip
    sys.exit(69)

import os
import sys
from pathlib import Path

DATA_TOOLS = Path(__file__).resolve().parents[1]
PACKAGES = str(DATA_TOOLS.parents[1] / "build/test/python")  # installed by scripts/test.sh; behind others, such as those of a virtual environment
sys.path.insert(0, str(DATA_TOOLS))
sys.path.append(PACKAGES)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), PACKAGES]))

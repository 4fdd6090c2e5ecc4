"""``python -m logstore``: the ``logstore`` command."""

import sys

from logstore.cli import main

if __name__ == "__main__":
    sys.exit(main())

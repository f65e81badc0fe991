import sys

from loopt.cli import main

sys.exit(main())

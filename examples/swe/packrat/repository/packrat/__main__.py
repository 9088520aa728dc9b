"""`python3 -m packrat`."""

import sys

from packrat.cli import main

sys.exit(main())

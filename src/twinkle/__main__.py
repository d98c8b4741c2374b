"""`python -m twinkle` is the `twinkle` command."""

import sys

from twinkle.cli import main

sys.exit(main())

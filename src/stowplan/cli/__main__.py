"""`python -m stowplan.cli`."""

from stowplan.cli import main

main()

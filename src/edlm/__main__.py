"""python -m edlm"""

from edlm.cli import main

main()

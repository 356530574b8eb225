"""`python -m penstock`, and the command `penstock`."""

import os
import signal


def main() -> None:
    """Ctrl-C ends it also while modules are imported: there is nothing to clean up then."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from penstock.cli.main import main as run

    run()


if __name__ == "__main__":
    main()

"""Entry point: ``specsim`` and ``python -m specsim``."""

import sys

from specsim.core.errors import SpecsimError


def main() -> None:
    """Run the command line; an error of specsim is one line and exit code 2."""
    try:
        from specsim.cli import app  # noqa: PLC0415 - worker processes import this file, no more
    except ImportError as error:
        from specsim.core.version import foreign  # noqa: PLC0415

        if "--debug" in sys.argv or (why := foreign()) is None:
            raise
        sys.stderr.write(f"error: {why} ({error})\n")
        sys.exit(2)
    try:
        app()
    except SpecsimError as error:
        if "--debug" in sys.argv:
            raise
        for line in str(error).splitlines() or [type(error).__name__]:
            sys.stderr.write(f"error: {line}\n")
        sys.exit(2)
    except RecursionError:
        if "--debug" in sys.argv:
            raise
        sys.stderr.write("error: a value is nested too deeply; make it flatter\n")
        sys.exit(2)
    except MemoryError as error:
        if "--debug" in sys.argv:
            raise
        sys.stderr.write(f"error: out of memory: {error}; simulate fewer requests at a time\n")
        sys.exit(2)
    except OSError as error:  # of files the commands say more; this is standard output
        if "--debug" in sys.argv:
            raise
        sys.stderr.write(f"error: {error.filename or 'output'}: {error.strerror or error}\n")
        sys.stdout = None  # what it still holds would fail again
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()

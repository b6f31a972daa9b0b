"""From exceptions to one clear message and the documented exit code. No traceback without --debug."""

import errno
import os
import sys
import traceback

import click

from nccltune.cli._streams import guarded
from nccltune.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, NccltuneError

_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
"""What only writing to an open file or stream can say."""


def run(command: click.Command, argv: list[str] | None = None) -> int:
    """Run ``command`` and return the exit code."""
    with guarded():
        return _run(command, argv)


def _run(command: click.Command, argv: list[str] | None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args or bool(os.environ.get("NCCLTUNE_DEBUG"))
    try:
        result = command.main(args=args, prog_name="nccltune", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that went away or a full disk is still told
        return result if isinstance(result, int) else EXIT_OK
    except NccltuneError as error:
        if debug:
            traceback.print_exc()
        _say("Error: " + "\n  ".join(error.lines()))
        return error.exit_code
    except click.UsageError as error:
        error.show(file=sys.stderr)
        return EXIT_USAGE
    except click.ClickException as error:
        _say(f"Error: {error.format_message()}")
        return error.exit_code
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("Interrupted.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return EXIT_OK  # the reader (head, less) went away: not an error of ours
    except OSError as error:
        # A path too long, a loop of links, a folder without permission, a full disk: the machine's word, no bug of ours.
        if debug:
            traceback.print_exc()
        _say(_of_the_machine(error))
        return EXIT_FAILED
    except Exception as error:
        if debug:
            traceback.print_exc()
        else:
            _say(
                f"Error: {type(error).__name__}: {error}\n  why: this is a bug in nccltune\n  do:  run again with --debug and report the traceback"
            )
        return EXIT_FAILED


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _of_the_machine(error: OSError) -> str:
    """Message for what the operating system refused."""
    place, advice = f"cannot use {error.filename}", "check the path; --debug shows where it happened"
    if error.filename is None:
        place = "the output cannot be written" if error.errno in _OUTPUT else "the operating system refused"
        advice = "make room, or write it elsewhere" if error.errno in _OUTPUT else advice
    return f"Error: {place}\n  why: {error.strerror or error}\n  do:  {advice}"

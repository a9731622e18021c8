"""What a command that is refused must look like."""

from crfield.cli import main


def failure(capsys, *words):
    """The one line on stderr of a command that is refused."""
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("crfield: error: ")
    assert captured.err.endswith(".\n")
    return captured.err

"""What a refusal must look like."""

import pytest

from crfield import InputError


def refusal(call, *arguments, **options):
    """The message of the InputError that the call must raise: one sentence with a remedy."""
    with pytest.raises(InputError) as caught:
        call(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    assert message.endswith(".")
    assert "; " in message, "a remedy follows the semicolon"
    return message

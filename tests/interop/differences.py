"""The differences between tensorwire and Triton, one row each; WIRE.md 10 describes the same.

A difference is explained if it disappears when its row rewrites the message. Most rows rewrite it
into the message that Triton understands: our result for the rewritten message must equal Triton's
result for the original. With `is_resent`, both sides get the rewritten message and must agree. The
few rows without a rewriting function are for messages that Triton's backend rejects, that stop it,
or that need resources it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from interop import difference_rewrites as rewrite
from interop.plain_message import Members, Message, extent, members, n_dims, parameter

ANYTHING = "*"


class Verdict(Protocol):
    @property
    def what(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass(frozen=True)
class Difference:
    """`ours` and `theirs` are patterns for the error, or None if that side accepts.

    The numbers in `why` are sections of WIRE.md.
    """

    id: str
    why: str
    ours: str | None
    theirs: str | None
    rewrite: Callable[[Message], Message] | None = None
    is_resent: bool = False
    is_lossless: bool = True  # our result is the same before and after
    condition: Callable[[Members], bool] | None = None  # that one of the inputs meets

    def apply(self, message: Message) -> Message:
        return message if self.rewrite is None else self.rewrite(message)

    def applies_to(self, message: Message, mine: Verdict, theirs: Verdict) -> bool:
        inputs = members(as_triton_reads(message).tree(), "inputs") if self.condition else []
        is_met = self.condition is None or any(map(self.condition, inputs))
        return is_met and matches(self.ours, mine) and matches(self.theirs, theirs)


def as_triton_reads(message: Message) -> Message:
    """Return the message as JSON. In Triton, a NUL ends the text (B16); Inf is a number (J5)."""
    for change in (rewrite.truncated_at_nul, rewrite.full_names_of_infinities):
        message = rewrite.text(change)(message)
    return message


def matches(pattern: str | None, verdict: Verdict) -> bool:
    if pattern == ANYTHING:
        return True
    if pattern is None:
        return verdict.what != "rejected"  # the server accepts what only its backend rejects
    return verdict.what != "accepted" and re.search(pattern, verdict.text) is not None


STOPPED = "not healthy|the server ended"

DIFFERENCES = (
    # accepted by Triton
    Difference("B9, B10 text after the digits", "a length has only digits (1)",
               "Content-Length is not a number", None, rewrite.only_leading_digits),
    Difference("B7 a length of more than 31 bits", "it exceeds the body (1)",
               "Content-Length is .*, but the body has", None, rewrite.wrapped_length),
    Difference("a length of more than 20 digits", "no length needs so many (1)",
               "Content-Length is not a number", None, rewrite.wrapped_length),
    Difference("B8, B11, B12 no digits", "a typo must not change the meaning (1)",
               "Content-Length is not a number", None, rewrite.raw_request_without_digits),
    Difference("R7 empty body", "0 must be explicit (1)", "header is empty", None,
               rewrite.empty_body),
    Difference("J23 byte order mark", "not allowed in transmitted JSON (3)", "malformed", None,
               rewrite.text(rewrite.without_order_mark)),
    Difference("B16 NUL after the JSON", "not JSON (3)", "malformed", None,
               rewrite.text(rewrite.truncated_at_nul)),
    Difference("J5 Inf, -Inf, -NaN", "no server is known to write them (4)", "malformed", None,
               rewrite.text(rewrite.full_names_of_infinities)),
    Difference("Y16, Y17 invalid UTF-8",
               "not JSON (3, 4)", "not (valid )?UTF-8|malformed|deep", None,
               rewrite.without_invalid_utf8),
    Difference("J5 NaN outside FP data", "not JSON (3)", "malformed|must be", None,
               rewrite.tree(rewrite.zero_for_nan)),
    Difference("J24 equal keys", "all readers must read the same message (3)", ANYTHING, ANYTHING,
               rewrite.tree(rewrite.first_of_equal_keys), is_lossless=False),
    Difference("C39 model_name, model_version", "a string is required (3)", "must be a string",
               None, rewrite.tree(rewrite.without_odd_model)),
    Difference("X3 parameters of an input or output", "an object is required (3)",
               "must be an object", None, rewrite.tree(rewrite.without_odd_parameters)),
    Difference("X6 NUL in a name", "two names could become equal (3)", "contains a NUL", None,
               rewrite.tree(rewrite.truncated_names)),
    Difference("C25 duplicate output", "as newer versions of Triton (3)", "appears twice", None,
               rewrite.tree(rewrite.without_repeated_outputs)),
    Difference("J18, J19 data of an empty tensor", "data and shape contradict each other (3, 4)",
               "JSON data|has none|must be|out of range", None,
               rewrite.tree(rewrite.without_data_of_empty_tensors)),
    Difference("J1, J2 empty FP16 and BF16 as JSON", "no JSON form (4)",
               "can only be sent as binary data", None, rewrite.tree(rewrite.empty_binary_data)),
    Difference("J7 FP32 out of range", "the value would change (4)", "out of range for FP32", None,
               rewrite.tree(rewrite.infinities)),
    Difference("J8 integers out of range", "the value would change (4)",
               "out of range for U?INT", None, rewrite.tree(rewrite.wrapped)),
    Difference("X19 more than 100 nested lists", "as newer versions of Triton (4)", "deep", None,
               rewrite.tree(rewrite.flattened)),
    Difference("more than 128 levels", "a parser recurses on the thread's stack (11)",
               "nested too deeply", None, rewrite.tree(rewrite.shallow)),
    Difference("R14 BOOL bytes above 1", "invalid in numpy (2)", "must be 0 or 1", None,
               rewrite.lenient_bools),
    # accepted by Triton's front end; rejected by its backend, or the backend stops
    Difference("Y4, Y6 truncated last element", "must not depend on the model (3)",
               "is truncated: its prefix declares", "incomplete string data"),
    Difference("a shape that overflows", "the tensor does not exist (3)", "", STOPPED,
               condition=lambda item: extent(item) >= 2**63),
    Difference("C15 a shape that overflows to an empty one", "the tensor does not exist (3)",
               "too large to address|can only be sent as binary data", None,
               condition=lambda item: extent(item) >= 2**63),
    Difference("a shape beyond the memory, with data", "a declared shape allocates nothing (4)",
               "", STOPPED, condition=lambda item: 2**32 <= extent(item) < 2**63),
    Difference("65 dimensions", "numpy has at most 64 (3)", "", STOPPED,
               condition=lambda item: n_dims(item) > 64),
    # rejected by Triton
    Difference("X6 NUL in a parameter's name", "any name is accepted (3)", None,
               "non-existing object member", rewrite.tree(rewrite.without_nul_parameters), True),
    Difference("1e400 in an unknown member", "not converted (3)", None, "Number too big",
               rewrite.tree(rewrite.without_huge_numbers), True),
    Difference("C17 rank 0",
               "a scalar has one element (3)", None, r"got \[\]",
               rewrite.tree(rewrite.one_for_scalar), True),
    Difference("J14 null", "NaN (4)", None, "non-number", rewrite.tree(rewrite.nan_for_null), True),
    Difference("J10 integers with a point or an exponent", "no value changes (4)", None,
               "non-(un)?signed-integer|Number too big",
               rewrite.tree(rewrite.integers_without_a_point), True),
    Difference("0e999 for FP32 and FP64", "it is zero (4)", None, "Number too big",
               rewrite.tree(rewrite.zero_without_exponent), True),
    Difference("null members", "absent (3)", None, "", rewrite.tree(rewrite.without_null), True),
    Difference("null sources", "absent (3)", None, "only one of",
               rewrite.tree(rewrite.without_null_source), True),
    Difference("X4 lists, objects and null as request parameters", "any JSON is accepted (10)",
               None, "has invalid type",
               rewrite.tree(rewrite.without_odd_request_parameters), True),
    Difference("Triton's own parameters", "checked by the server, not the codec", None,
               "sequence|priority|timeout|reserved",
               rewrite.tree(rewrite.without_reserved_parameters), True),
    Difference("shared memory input", "looked up by the server, not the codec", None,
               "shared.memory",
               condition=lambda item: parameter(item, "shared_memory_region") is not None),
    Difference("shared memory output",
               "looked up by the server, not the codec", None, "shared.memory",
               rewrite.tree(rewrite.without_shared_memory_outputs), True),
    Difference("K1 classification", "done by the server, not the codec", None, ANYTHING,
               rewrite.tree(rewrite.without_classification), True),
    Difference("Y8 BYTES as JSON, invalid UTF-8",
               "not JSON (4)", "is not valid UTF-8", None, rewrite.tree(rewrite.all_outputs_binary),
               True),
    Difference("decimals", "nearest (4)", None, None, rewrite.exact_decimals, True),
    Difference("-0 for FP32 and FP64", "the sign is kept (4)", None, None,
               rewrite.tree(rewrite.minus_zero_with_a_point), True),
    Difference("names and ranks of the model",
               "a property of the model, not of the format", None, "unexpected|data-type is",
               rewrite.tree(rewrite.with_declared_names_and_ranks), True),
)  # fmt: skip

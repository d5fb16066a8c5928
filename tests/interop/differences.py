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

from interop.difference_rewrites import (
    all_outputs_binary,
    empty_binary_data,
    empty_body,
    exact_decimals,
    first_of_equal_keys,
    flattened,
    full_names_of_infinities,
    infinities,
    integers_without_a_point,
    lenient_bools,
    minus_zero_with_a_point,
    nan_for_null,
    one_for_scalar,
    only_leading_digits,
    raw_request_without_digits,
    shallow,
    text,
    tree,
    truncated_at_nul,
    truncated_names,
    with_declared_names_and_ranks,
    without_classification,
    without_data_of_empty_tensors,
    without_huge_numbers,
    without_invalid_utf8,
    without_nul_parameters,
    without_null,
    without_null_source,
    without_odd_model,
    without_odd_parameters,
    without_odd_request_parameters,
    without_order_mark,
    without_repeated_outputs,
    without_reserved_parameters,
    without_shared_memory_outputs,
    wrapped,
    wrapped_length,
    zero_for_nan,
    zero_without_exponent,
)
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
        # A NUL ends the JSON of Triton (B16).
        inputs = members(text(truncated_at_nul)(message).tree(), "inputs") if self.condition else []
        is_met = self.condition is None or any(map(self.condition, inputs))
        return is_met and matches(self.ours, mine) and matches(self.theirs, theirs)


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
               "Content-Length is not a number", None, only_leading_digits),
    Difference("B7 a length of more than 31 bits", "it exceeds the body (1)",
               "Content-Length is .*, but the body has", None, wrapped_length),
    Difference("a length of more than 20 digits", "no length needs so many (1)",
               "Content-Length is not a number", None, wrapped_length),
    Difference("B8, B11, B12 no digits", "a typo must not change the meaning (1)",
               "Content-Length is not a number", None, raw_request_without_digits),
    Difference("R7 empty body", "0 must be explicit (1)", "header is empty", None, empty_body),
    Difference("J23 byte order mark", "not allowed in transmitted JSON (3)", "malformed", None,
               text(without_order_mark)),
    Difference("B16 NUL after the JSON", "not JSON (3)", "malformed", None, text(truncated_at_nul)),
    Difference("J5 Inf, -Inf, -NaN", "no server is known to write them (4)", "malformed", None,
               text(full_names_of_infinities)),
    Difference("Y16, Y17 invalid UTF-8",
               "not JSON (3, 4)", "not (valid )?UTF-8|malformed|deep", None, without_invalid_utf8),
    Difference("J5 NaN outside FP data", "not JSON (3)", "malformed|must be", None,
               tree(zero_for_nan)),
    Difference("J24 equal keys", "all readers must read the same message (3)", ANYTHING, ANYTHING,
               tree(first_of_equal_keys), is_lossless=False),
    Difference("C39 model_name, model_version", "a string is required (3)", "must be a string",
               None, tree(without_odd_model)),
    Difference("X3 parameters of an input or output", "an object is required (3)",
               "must be an object", None, tree(without_odd_parameters)),
    Difference("X6 NUL in a name", "two names could become equal (3)", "contains a NUL", None,
               tree(truncated_names)),
    Difference("C25 duplicate output", "as newer versions of Triton (3)", "appears twice", None,
               tree(without_repeated_outputs)),
    Difference("J18, J19 data of an empty tensor", "data and shape contradict each other (3, 4)",
               "JSON data|has none|must be", None, tree(without_data_of_empty_tensors)),
    Difference("J1, J2 empty FP16 and BF16 as JSON", "no JSON form (4)",
               "can only be sent as binary data", None, tree(empty_binary_data)),
    Difference("J7 FP32 out of range", "the value would change (4)", "out of range for FP32", None,
               tree(infinities)),
    Difference("J8 integers out of range", "the value would change (4)",
               "out of range for U?INT", None, tree(wrapped)),
    Difference("X19 more than 100 nested lists", "as newer versions of Triton (4)", "deep", None,
               tree(flattened)),
    Difference("more than 128 levels", "a parser recurses on the thread's stack (11)",
               "nested too deeply", None, tree(shallow)),
    Difference("R14 BOOL bytes above 1", "invalid in numpy (2)", "must be 0 or 1", None,
               lenient_bools),
    # accepted by Triton's front end; rejected by its backend, or the backend stops
    Difference("Y4, Y6 truncated last element", "must not depend on the model (3)",
               "is truncated: its prefix declares", "incomplete string data"),
    Difference("a shape that overflows", "the tensor does not exist (3)", "", STOPPED,
               condition=lambda item: extent(item) >= 2**63),
    Difference("C15 a shape that overflows to an empty one", "the tensor does not exist (3)",
               "too large to address", None, condition=lambda item: extent(item) >= 2**63),
    Difference("a shape beyond the memory, with data", "a declared shape allocates nothing (4)",
               "its JSON data has", STOPPED, condition=lambda item: 2**60 <= extent(item) < 2**63),
    Difference("65 dimensions", "numpy has at most 64 (3)", "", STOPPED,
               condition=lambda item: n_dims(item) > 64),
    # rejected by Triton
    Difference("X6 NUL in a parameter's name", "any name is accepted (3)", None,
               "non-existing object member", tree(without_nul_parameters), True),
    Difference("1e400 in an unknown member", "not converted (3)", None, "Number too big",
               tree(without_huge_numbers), True),
    Difference("C17 rank 0",
               "a scalar has one element (3)", None, r"got \[\]", tree(one_for_scalar), True),
    Difference("J14 null", "NaN (4)", None, "non-number", tree(nan_for_null), True),
    Difference("J10 integers with a point or an exponent", "no value changes (4)", None,
               "non-(un)?signed-integer|Number too big",
               tree(integers_without_a_point), True),
    Difference("0e999 for FP32 and FP64", "it is zero (4)", None, "Number too big",
               tree(zero_without_exponent), True),
    Difference("null members", "absent (3)", None, "", tree(without_null), True),
    Difference("null sources", "absent (3)", None, "only one of", tree(without_null_source), True),
    Difference("X4 lists, objects and null as request parameters", "any JSON is accepted (10)",
               None, "has invalid type",
               tree(without_odd_request_parameters), True),
    Difference("Triton's own parameters", "checked by the server, not the codec", None,
               "sequence|priority|timeout|reserved",
               tree(without_reserved_parameters), True),
    Difference("shared memory input", "looked up by the server, not the codec", None,
               "shared.memory",
               condition=lambda item: parameter(item, "shared_memory_region") is not None),
    Difference("shared memory output",
               "looked up by the server, not the codec", None, "shared.memory",
               tree(without_shared_memory_outputs), True),
    Difference("K1 classification", "done by the server, not the codec", None, ANYTHING,
               tree(without_classification), True),
    Difference("Y8 BYTES as JSON, invalid UTF-8",
               "not JSON (4)", "is not valid UTF-8", None, tree(all_outputs_binary),
               True),
    Difference("decimals", "nearest (4)", None, None, exact_decimals, True),
    Difference("-0 for FP32 and FP64", "the sign is kept (4)", None, None,
               tree(minus_zero_with_a_point), True),
    Difference("names and ranks of the model",
               "a property of the model, not of the format", None, "unexpected|data-type is",
               tree(with_declared_names_and_ranks), True),
)  # fmt: skip

"""Where tensorwire and Triton differ, one reasoned row each; WIRE.md 10 has the same in words.

A row rewrites a message so that its difference is gone: into what Triton takes it for (its answer
to the message is then ours to the rewritten one), or, where `is_resent`, into one that both sides
take alike (both are asked again). Only so is a difference explained. The few rows without a
rewriting are messages that Triton's backend refuses or dies of, or that need what it has not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from interop.difference_rewrites import (
    all_outputs_binary,
    as_the_model_has_it,
    cut_names,
    digits_in_front,
    empty_body,
    exact_decimals,
    first_of_equal_keys,
    flattened,
    infinities,
    lenient_bools,
    nan_for_null,
    no_digits,
    no_utf8,
    one_for_scalar,
    sent_as_no_bytes,
    shallow,
    spelt_out,
    text,
    tree,
    up_to_nul,
    without_classification,
    without_data_of_the_empty,
    without_huge_numbers,
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
    """`ours` and `theirs`: what a refusal says, as a pattern; None where that side accepts.

    The numbers in `why` are sections of WIRE.md.
    """

    id: str
    why: str
    ours: str | None
    theirs: str | None
    rewrite: Callable[[Message], Message] | None = None
    is_resent: bool = False
    is_lossless: bool = True  # what we read is the same before and after
    holds: Callable[[Members], bool] | None = None  # of one of the inputs

    def apply(self, message: Message) -> Message:
        return message if self.rewrite is None else self.rewrite(message)

    def says(self, message: Message, mine: Verdict, theirs: Verdict) -> bool:
        inputs = members(message.tree(), "inputs") if self.holds else []
        is_there = self.holds is None or any(map(self.holds, inputs))
        return is_there and is_said(self.ours, mine) and is_said(self.theirs, theirs)


def is_said(pattern: str | None, verdict: Verdict) -> bool:
    if pattern == ANYTHING:
        return True
    if pattern is None:
        return verdict.what != "refused"  # what only the backend refuses, the server has accepted
    return verdict.what != "accepted" and re.search(pattern, verdict.text) is not None


DEAD = "not healthy|the server ended"

DIFFERENCES = (
    # Triton accepts
    Difference("B9, B10 digits in front", "a length is digits (1)",
               "Content-Length is not a number", None, digits_in_front),
    Difference("B7 a length of more than 31 bits", "it is beyond the body (1)",
               "Content-Length is .*, the body has", None, wrapped_length),
    Difference("a length of more than 20 digits", "no length needs them (1)",
               "Content-Length is not a number", None, wrapped_length),
    Difference("B8, B11, B12 no digits", "a typing error must not make a raw request (1)",
               "Content-Length is not a number", None, no_digits),
    Difference("R7 empty body", "0 has to be said (1)", "header is empty", None, empty_body),
    Difference("J23 byte order mark", "JSON in transit has none (3)", "malformed", None,
               text(without_order_mark)),
    Difference("B16 NUL behind the JSON", "not JSON (3)", "malformed", None, text(up_to_nul)),
    Difference("J5 Inf, -Inf, -NaN", "no server is known to write them (4)", "malformed", None,
               text(spelt_out)),
    Difference("Y16, Y17 no UTF-8", "not JSON (3, 4)", "not UTF-8|malformed", None, no_utf8),
    Difference("J5 NaN outside of FP data", "not JSON (3)", "malformed|does not fit", None,
               tree(zero_for_nan)),
    Difference("J24 equal keys", "two readers must not see two messages (3)", ANYTHING, ANYTHING,
               tree(first_of_equal_keys), is_lossless=False),
    Difference("C39 model_name, model_version", "the protocol says string (3)", "does not fit",
               None, tree(without_odd_model)),
    Difference("X3 parameters of an input or output", "the protocol says object (3)",
               "does not fit", None, tree(without_odd_parameters)),
    Difference("X6 NUL in a name", "two names could become one (3)", "contains a NUL", None,
               tree(cut_names)),
    Difference("C25 an output twice", "as the newer Triton (3)", "appears twice", None,
               tree(without_repeated_outputs)),
    Difference("J18, J19 data of an empty tensor", "data and shape contradict each other (3, 4)",
               "JSON data|it has none", None, tree(without_data_of_the_empty)),
    Difference("J1, J2 FP16 and BF16 of no elements, as JSON", "they have no JSON (4)",
               "it travels only binary", None, tree(sent_as_no_bytes)),
    Difference("J7 FP32 beyond its range", "a changed value (4)", "FP32 takes", None,
               tree(infinities)),
    Difference("J8 integers beyond their range", "a changed value (4)", "takes -?[0-9]+ to", None,
               tree(wrapped)),
    Difference("X19 more than 100 nested lists", "as the newer Triton (4)", "deep", None,
               tree(flattened)),
    Difference("more than 128 levels", "a parser recurses on the thread's stack (11)",
               "nested too deep", None, tree(shallow)),
    Difference("R14 BOOL bytes", "they break numpy (2)", "is not a BOOL", None,
               lenient_bools),
    # Triton's front end accepts; the backend refuses, or dies
    Difference("Y4, Y6 the last element's end", "not left to a model (3)",
               "is truncated: its prefix declares", "incomplete string data"),
    Difference("a shape that overflows", "the tensor does not exist (3)", "", DEAD,
               holds=lambda item: extent(item) >= 2**63),
    Difference("C15 a shape that overflows to an empty one", "the tensor does not exist (3)",
               "too large to address", None, holds=lambda item: extent(item) >= 2**63),
    Difference("a shape beyond the memory, with data", "nothing is allocated by a claim (4)",
               "its JSON data has", DEAD, holds=lambda item: 2**60 <= extent(item) < 2**63),
    Difference("65 dimensions", "numpy has no such array (3)", "", DEAD,
               holds=lambda item: n_dims(item) > 64),
    # Triton refuses
    Difference("X6 NUL in a parameter's name", "any name is passed on (3)", None,
               "non-existing object member", tree(without_nul_parameters), True),
    Difference("1e400 in what is not read", "it is not looked at (3)", None, "Number too big",
               tree(without_huge_numbers), True),
    Difference("C17 rank 0", "one element (3)", None, r"got \[\]", tree(one_for_scalar), True),
    Difference("J14 null", "NaN (4)", None, "non-number", tree(nan_for_null), True),
    Difference("null members", "absent (3)", None, "", tree(without_null), True),
    Difference("null sources", "absent (3)", None, "only one of", tree(without_null_source), True),
    Difference("X4 lists, objects and null as request parameters", "any JSON is passed on (10)",
               None, "has invalid type",
               tree(without_odd_request_parameters), True),
    Difference("Triton's own parameters", "the server's to judge, not the codec's", None,
               "sequence|priority|timeout|reserved",
               tree(without_reserved_parameters), True),
    Difference("shared memory input", "not ours to look up", None,
               "shared.memory",
               holds=lambda item: parameter(item, "shared_memory_region") is not None),
    Difference("shared memory output", "not ours to look up", None, "shared.memory",
               tree(without_shared_memory_outputs), True),
    Difference("K1 classification", "the server's to do, not the codec's", None, ANYTHING,
               tree(without_classification), True),
    Difference("Y8 BYTES as JSON", "not JSON (4)", "is not UTF-8", None, tree(all_outputs_binary),
               True),
    Difference("decimals", "nearest (4)", None, None, exact_decimals, True),
    Difference("the model", "of the model, not the wire", None, "unexpected|data-type is",
               tree(as_the_model_has_it), True),
)  # fmt: skip

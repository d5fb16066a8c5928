"""Compare the gRPC codec with protobuf's generated classes and the rules of WIRE.md 12.

`python -m fuzz.grpc_judge --messages 1000000 --seed 7` compares random messages, valid and invalid.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import time
from collections import Counter
from math import prod
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, EncodeError
from tritonclient.grpc import service_pb2

import tensorwire as tw
import tensorwire.grpc
from fuzz.comparison import check_error, exact, plain, tensors_of
from fuzz.grpc_messages import CONTENTS, KINDS, RAW, random_message
from support import reference
from tensorwire._codec import protobuf_reader, protobuf_writer
from tensorwire.errors import format_count, format_shape, format_subject, format_value

CLASSES = {
    "request": service_pb2.ModelInferRequest,
    "response": service_pb2.ModelInferResponse,
    "stream": service_pb2.ModelStreamInferResponse,
    "metadata": service_pb2.ModelMetadataResponse,
}
SPECIFICATION = {1: ("name", str), 2: ("datatype", str), 3: ("shape", [int])}
METADATA = {
    1: ("name", str),
    2: ("versions", [str]),
    3: ("platform", str),
    4: ("inputs", [SPECIFICATION]),
    5: ("outputs", [SPECIFICATION]),
}
MEMBERS = (
    *(None, "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents"),
    *("fp32_contents", "fp64_contents", "bytes_contents"),
)
ACCEPTED = {"INT8": (-128, 127), "INT16": (-(2**15), 2**15 - 1), "UINT8": (0, 255)}
ACCEPTED["UINT16"] = (0, 2**16 - 1)
NUMPY = {name: f"<{code}" for name, code in reference.FORMATS.items()}
NUMPY |= {"BF16": "<u2", "BOOL": "?"}
LIMITS = {  # most inputs use the default limits
    False: tw.Limits(bf16_as_uint16=True),
    True: tw.Limits(
        max_tensors=2, max_rank=1, max_elements=5, max_name_nbytes=3, check_bool=False,
        bf16_as_uint16=True,
    ),
}  # fmt: skip
MALFORMED = ("the gRPC message is malformed: ", "is not valid UTF-8")
N_CHOICES = 1  # a byte before the message
Reading = dict[str, Any]


def grpc(data: bytes) -> None:
    """A gRPC message is read like protobuf reads it, or breaks a rule; and written likewise."""
    choices, message = data[:1].ljust(1, b"\0")[0], data[1:]
    compare(KINDS[choices % 4], message, choices)


def compare(kind: str, message: bytes, choices: int = 0) -> str:
    """Compare one message, and return what the result is."""
    theirs = CLASSES[kind]()
    try:
        theirs.ParseFromString(message)
    except DecodeError:
        theirs = None
    if kind in RAW:
        compare_split(kind, message, theirs)
    source = exact(message) if choices & 4 else message
    if kind == "metadata":
        return compare_metadata(source, theirs)
    limits = LIMITS[choices & 56 == 56]
    problems = [] if theirs is None else problems_of(kind, theirs, limits)
    ours: Any = None
    try:
        if kind == "stream":
            server_error, ours = protobuf_reader.read_stream_response(source, limits)
            assert theirs is not None, "protobuf rejects the message"
            assert (server_error or "") == theirs.error_message
            if server_error is not None:
                assert ours is None
                return "error"
            theirs = theirs.infer_response
        else:
            decode = tw.grpc.decode_request if kind == "request" else tw.grpc.decode_response
            ours = decode(source, limits=limits)
    except tw.DecodeError as error:
        check_error(error, len(message))
        shown = f"{type(error).__name__}: {error}"
        is_malformed = any(text in shown for text in MALFORMED)
        assert is_malformed or any(map(shown.startswith, problems)) or theirs is None, (
            shown, problems)  # fmt: skip
        assert not is_malformed or theirs is None, shown
        return "malformed" if theirs is None else "against a rule"
    assert theirs is not None, "protobuf rejects the message"
    assert not problems, problems
    is_request = kind == "request"
    check_same(reading_of_ours(ours), expected := reading_of_theirs(theirs, is_request))
    if choices & 64:
        compare_encoded(ours, theirs, expected, is_request)
    if choices & 4:
        del ours
        source.append(0)  # raises BufferError if any view of the message remains
    return "accepted"


def compare_metadata(source: Any, theirs: Any) -> str:
    """Compare a message that is read as a dict of its fields."""
    try:
        ours = protobuf_reader.read_message(source, METADATA)
    except tw.HeaderError as error:
        check_error(error, len(source))
        assert theirs is None, error
        return "malformed"
    assert theirs is not None, "protobuf rejects the message"
    assert ours == {
        **{"name": theirs.name, "versions": list(theirs.versions), "platform": theirs.platform},
        **{
            member: [
                {"name": item.name, "datatype": item.datatype, "shape": list(item.shape)}
                for item in getattr(theirs, member)
            ]
            for member in ("inputs", "outputs")
        },
    }
    again = type(theirs).FromString(protobuf_writer.write_message(ours, METADATA))
    theirs.DiscardUnknownFields()
    assert again == theirs
    return "accepted"


def compare_split(kind: str, message: bytes, theirs: Any) -> None:
    """Compare the message without its raw contents, and these."""
    is_request = kind == "request"
    head, contents = protobuf_reader.split_raw_contents(message, is_request)
    if theirs is None:
        try:
            CLASSES[kind].FromString(head)
        except DecodeError:
            return
        raise AssertionError("only the message without raw contents is valid")
    member = f"raw_{'input' if is_request else 'output'}_contents"
    assert contents == list(getattr(theirs, member))
    if contents:
        rest = CLASSES[kind].FromString(head)
        assert not getattr(rest, member)
        getattr(rest, member).extend(map(bytes, contents))
        assert same(rest, theirs)
        whole = protobuf_writer.append_raw_contents(head, contents, is_request)
        assert same(CLASSES[kind].FromString(whole), theirs)


def same(one: Any, other: Any) -> bool:
    """Return whether messages are equal; NaNs are equal if their bits are."""
    if one == other:
        return True
    texts = [message.SerializeToString(deterministic=True) for message in (one, other)]
    return bool(texts[0] == texts[1])


# --- the rules of the protocol -------------------------------------------------------------------


def problems_of(kind: str, theirs: Any, limits: tw.Limits) -> list[str]:
    """Return the rules that a message breaks: the beginnings of the errors that may be raised."""
    message = theirs.infer_response if kind == "stream" else theirs
    is_request = kind == "request"
    side = "input" if is_request else "output"
    tensors = message.inputs if is_request else message.outputs
    raw = message.raw_input_contents if is_request else message.raw_output_contents
    requested = message.outputs if is_request else ()
    found = []
    total, n_with_data = 0, 0
    for number, noun in ((len(tensors), side), (len(raw), "raw content")):
        if number > limits.max_tensors:
            found.append(f"HeaderError: the message has more than "
                         f"{format_count(noun, limits.max_tensors)}, which is the limit")  # fmt: skip
    if len(requested) > limits.max_tensors:
        found.append(f"HeaderError: the message has more than "
                     f"{format_count('requested output', limits.max_tensors)}, which")  # fmt: skip
    rest = list(raw)
    for tensor in tensors:
        subject = format_subject(side, tensor.name)
        total = min(total + prod(tensor.shape), 2**63 - 1) if min(tensor.shape, default=0) >= 0 else total
        if total > limits.max_elements:
            found.append(f"LayoutError: the message has {format_count('element', total)} up to "
                         f"{subject}; the limit is {limits.max_elements}")  # fmt: skip
        is_outside = type(value_of(tensor.parameters, "shared_memory_region")) is not str
        n_with_data += is_outside
        content = rest.pop(0) if is_outside and rest else None
        found += name_problems(subject, tensor.name, limits)
        found += tensor_problems(tensor, subject, side, content, is_outside, limits)
    if raw and len(raw) != n_with_data:
        found.append(f"LayoutError: the message has {format_count('raw content', len(raw))}, but "
                     f"{format_count(side, n_with_data)} outside of shared memory")  # fmt: skip
    for output in requested:
        subject = format_subject("output", output.name)
        found += name_problems(subject, output.name, limits)
        binary = value_of(output.parameters, "binary_data")
        if binary is not None and type(binary) is not bool:
            found.append(f"HeaderError: binary_data of {subject} must be true or false, not "
                         f"{format_value(binary)}")  # fmt: skip
    for items, noun in ((tensors, side), (requested, "output")):
        counted = Counter(item.name for item in items)
        found += [f"HeaderError: {format_subject(noun, name)} appears twice"
                  for name, n in counted.items() if n > 1]  # fmt: skip
    if is_request:
        if not tensors:
            found.append("HeaderError: the request has no inputs")
        binary = value_of(message.parameters, "binary_data_output")
        if binary is not None and type(binary) is not bool:
            found.append(f"HeaderError: binary_data_output of the request must be true or false, "
                         f"not {format_value(binary)}")  # fmt: skip
    return found


def name_problems(subject: str, name: str, limits: tw.Limits) -> list[str]:
    nbytes = len(name.encode())
    found = [f"HeaderError: the name of {subject} contains a NUL"] if "\0" in name else []
    if nbytes > limits.max_name_nbytes:
        found.append(f"HeaderError: the name of {subject} is {format_count('byte', nbytes)} long; "
                     f"the limit is {limits.max_name_nbytes}")  # fmt: skip
    return found


def tensor_problems(
    tensor: Any, subject: str, side: str, content: bytes | None, is_outside: bool, limits: tw.Limits
) -> list[str]:
    """Return the rules that a tensor breaks, apart from its name. Most exclude later ones."""
    datatype, shape = tensor.datatype, list(tensor.shape)
    region = value_of(tensor.parameters, "shared_memory_region")
    if datatype not in reference.DATATYPES:
        return [f"HeaderError: {subject} has an unknown datatype: {format_value(datatype)}"]
    if region is not None and type(region) is not str:
        return [f"HeaderError: shared_memory_region of {subject} must be a string, not "
                f"{format_value(region)}"]  # fmt: skip
    if len(shape) > limits.max_rank:
        return [f"LayoutError: {subject} has {format_count('dimension', len(shape))}; the limit is "
                f"{limits.max_rank}"]  # fmt: skip
    if min(shape, default=0) < 0:
        return [f"LayoutError: {subject} has a negative dimension: shape {format_shape(shape)}"]
    itemsize = reference.SIZES.get(datatype, reference.REFERENCE_SIZE)
    if prod((dim for dim in shape if dim), start=itemsize) >= 2**63:
        return [f"LayoutError: {subject} is too large to address: {datatype} {format_shape(shape)} "
                f"exceeds 2^63 - 1 bytes"]  # fmt: skip
    n_elements = prod(shape)
    number = CONTENTS.get(datatype, 0)
    n_typed = 0
    for i in range(1, 9):
        n = len(getattr(tensor.contents, MEMBERS[i] or ""))
        if n and i != number:
            only = MEMBERS[number] or "raw contents"
            return [f"HeaderError: {subject} is {datatype}, which can only be sent as {only}, but "
                    f"has {MEMBERS[i]}"]  # fmt: skip
        n_typed += n
    if n_typed and n_typed != n_elements:
        return [f"LayoutError: {subject} does not match its shape: {datatype} "
                f"{format_shape(shape)} requires {format_count('element', n_elements)}, but its "
                f"{MEMBERS[number]} have {n_typed}"]  # fmt: skip
    if datatype in ACCEPTED and n_typed:
        low, high = ACCEPTED[datatype]
        for i, value in enumerate(getattr(tensor.contents, MEMBERS[number] or "")):
            if not low <= value <= high:
                return [f"ElementError: element {i} of {subject} is {value}, which is out of range "
                        f"for {datatype} ({low} to {high}) (byte "]  # fmt: skip
    one_of = f"HeaderError: {subject} must have exactly one of contents, raw_{side}_contents and "
    if not is_outside:
        has_both = f"{one_of}shared_memory_region, but has contents and shared_memory_region"
        return [has_both] if n_typed else []
    if content is None:
        return [f"{one_of}shared_memory_region, but has none"] if n_elements and not n_typed else []
    if n_typed:
        return [f"HeaderError: {subject} has both contents and raw_{side}_contents"]
    return raw_problems(datatype, shape, content, subject, limits)


def raw_problems(
    datatype: str, shape: list[int], content: bytes, subject: str, limits: tw.Limits
) -> list[str]:
    n_elements, nbytes = prod(shape), len(content)
    if datatype != "BYTES":
        expected = n_elements * reference.SIZES[datatype]
        if nbytes != expected:
            return [f"LayoutError: {subject} does not match its datatype: {datatype} "
                    f"{format_shape(shape)} requires {expected} bytes, but its binary data has "
                    f"{nbytes}"]  # fmt: skip
    try:
        if datatype == "BYTES" and 4 * n_elements > nbytes:
            raise reference.LayoutError
        if datatype == "BYTES" or (datatype == "BOOL" and limits.check_bool):
            reference.unpack(datatype, content, n_elements)
    except reference.LayoutError:
        return [f"LayoutError: {subject} does not match its shape: "]
    except reference.ElementError:
        return [f"ElementError: element {i} of {subject} " for i in range(n_elements)]
    return []


# --- readings ------------------------------------------------------------------------------------


def value_of(parameters: Any, key: str) -> Any:
    """Return a parameter of a generated message. One without a value is None."""
    if key not in parameters:
        return None
    member = parameters[key].WhichOneof("parameter_choice")
    return None if member is None else getattr(parameters[key], member)


def parameters_of(theirs: Any, *without: str) -> str | None:
    kept = {key: value_of(theirs, key) for key in theirs if key not in without}
    return repr(sorted(kept.items())) if kept else None


def reading_of_theirs(message: Any, is_request: bool) -> Reading:
    tensors = message.inputs if is_request else message.outputs
    raw = list(message.raw_input_contents if is_request else message.raw_output_contents)
    return {
        "names": [
            text or None for text in (message.model_name, message.model_version, message.id)
        ],
        "parameters": parameters_of(message.parameters),
        "tensors": [reading_of_tensor(tensor, raw) for tensor in tensors],
        "outputs": [
            (
                output.name,
                value_of(output.parameters, "binary_data"),
                parameters_of(output.parameters, "binary_data"),
            )
            for output in (message.outputs if is_request else ())
        ],
    }


def reading_of_tensor(tensor: Any, raw: list[bytes]) -> tuple[Any, ...]:
    """Return what a tensor has. Its raw content is the next one, which is removed."""
    region = value_of(tensor.parameters, "shared_memory_region")
    without = ["binary_data_size", *([] if region is not None else ["shared_memory_region"])]
    front = (tensor.name, tensor.datatype, tuple(tensor.shape))
    parameters = parameters_of(tensor.parameters, *without)
    if region is not None:
        return (*front, parameters, None, False)
    if raw:
        return (*front, parameters, comparable(tensor.datatype, raw.pop(0)), True)
    number = CONTENTS.get(tensor.datatype, 0)
    values = list(getattr(tensor.contents, MEMBERS[number] or "")) if number else []
    data = reference.pack(tensor.datatype, values) if values else b""
    return (*front, parameters, comparable(tensor.datatype, data), False)


def comparable(datatype: str, data: bytes) -> Any:
    """Return the data of a tensor. All NaNs are equal: protobuf's Python changes their bits."""
    if datatype in ("FP32", "FP64"):
        values = struct.unpack(f"<{len(data) // reference.SIZES[datatype]}"
                               f"{reference.FORMATS[datatype]}", data)  # fmt: skip
        if any(map(math.isnan, values)):
            return repr(values)
    return data


def reading_of_ours(message: Any) -> Reading:
    outputs = message.outputs if isinstance(message, tw.InferRequest) else None
    return {
        "names": [message.model_name, message.model_version, message.id],
        "parameters": sorted_parameters(message.parameters),
        "tensors": [
            (
                tensor.name,
                tensor.datatype,
                tensor.shape,
                sorted_parameters(tensor.parameters),
                data_of(tensor),
                tensor.binary,
            )
            for tensor in tensors_of(message)
        ],
        "outputs": [
            (output.name, output.binary, sorted_parameters(output.parameters))
            for output in outputs or ()
        ],
    }


def sorted_parameters(parameters: Any) -> str | None:
    return repr(sorted(plain(parameters).items())) if parameters else None


def data_of(tensor: tw.Tensor) -> Any:
    if isinstance(tensor.data, tw.BytesArray):
        assert reference.elements(tensor.data.reshape((tensor.data.size,)).tolist()) == tensor.data.wire
        return bytes(tensor.data.wire)
    if tensor.data is None:
        return None
    assert tensor.data.shape == tensor.shape
    assert tensor.data.dtype == NUMPY[tensor.datatype]
    return comparable(tensor.datatype, tensor.data.tobytes())


def compare_encoded(ours: Any, theirs: Any, expected: Reading, is_request: bool) -> None:
    """Compare what the encoder writes with what protobuf reads, and the other way around."""
    encode = tw.grpc.encode_request if is_request else tw.grpc.encode_response
    decode = tw.grpc.decode_request if is_request else tw.grpc.decode_response
    encoded = encode(ours)
    # Typed contents become raw ones.
    raw = {**expected, "tensors": [(*t[:5], t[4] is not None) for t in expected["tensors"]]}
    again = type(theirs).FromString(encoded)
    check_same(reading_of_theirs(again, is_request), raw)
    assert again.ByteSize() == len(encoded)
    check_same(reading_of_ours(decode(encoded, limits=LIMITS[False])), raw)
    rewritten = theirs.SerializeToString()
    check_same(reading_of_ours(decode(rewritten, limits=LIMITS[False])), expected)


def check_same(actual: Reading, expected: Reading) -> None:
    assert actual == expected, f"\n{actual}\n{expected}"


# --- a campaign ----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(campaign(arguments.messages, arguments.seed))


def campaign(n_messages: int, seed: int) -> Counter[str]:
    """Compare random messages, and return how many of each kind had which result."""
    results: Counter[str] = Counter()
    for i in range(n_messages):
        chooser = random.Random(f"{seed} {i}")
        kind = chooser.choice(("request", "request", "response", "response", "stream", "metadata"))
        choices = chooser.randrange(256)
        message = random_message(kind, chooser)
        try:
            results[f"{kind}: {compare(kind, message, choices)}"] += 1
        except Exception as error:
            error.add_note(f"{kind}, choices {choices}: {message!r}")
            raise
    return results


if __name__ == "__main__":
    main()

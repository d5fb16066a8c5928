"""A check of the gRPC codec with protobuf's generated classes and the rules of WIRE.md 12."""

from __future__ import annotations

import math
from collections import Counter
from math import prod
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

import tensorwire as tw
import tensorwire.grpc
from fuzz.comparison import check_error, exact, plain, tensors_of
from support import reference
from support.grpc_strategies import CONTENTS, RAW
from tensorwire._codec.grpc import reader, writer
from tensorwire.errors import format_count, format_shape, format_subject, format_value
from tensorwire.grpc_messages import RAW_INPUT_CONTENTS, RAW_OUTPUT_CONTENTS

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
    *("", "bool_contents", "int_contents", "int64_contents", "uint_contents", "uint64_contents"),
    *("fp32_contents", "fp64_contents", "bytes_contents"),
)
ACCEPTED = {"INT8": (-128, 127), "INT16": (-(2**15), 2**15 - 1), "UINT8": (0, 255)}
ACCEPTED["UINT16"] = (0, 2**16 - 1)
NUMPY = {name: f"<{code}" for name, code in reference.FORMATS.items()}
NUMPY |= {"BF16": "<u2", "BOOL": "?"}
LIMITS = {  # most inputs use the default limits
    False: tw.Limits(bf16_as_uint16=True),
    True: tw.Limits(max_tensors=2, max_rank=1, max_elements=5, max_name_nbytes=3,
                    check_bool=False, bf16_as_uint16=True),
}  # fmt: skip
UNCHECKED = tw.Limits(check_bool=False, bf16_as_uint16=True)
MALFORMED = ("the gRPC message is malformed: ", "is not valid UTF-8")
Reading = dict[str, Any]


def compare(kind: str, message: bytes, options: int = 0) -> str:
    """A message is read like protobuf reads it, or breaks a rule; and written likewise.

    Return what the result is. The bits of the options: the memory can be resized afterwards, the
    message is encoded again, and the limits are low.
    """
    theirs = CLASSES[kind]()
    try:
        theirs.ParseFromString(message)
    except DecodeError:
        theirs = None
    if kind in RAW:
        compare_split(kind, message, theirs)
    source: Any = exact(message) if options & 1 else message
    if kind == "metadata":
        return compare_metadata(source, theirs)
    limits = LIMITS[options & 4 == 4]
    problems = [] if theirs is None else problems_of(kind, theirs, limits)
    ours: Any = None
    try:
        if kind == "stream":
            server_error, ours = reader.read_stream_response(source, limits)
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
        is_known = is_malformed or theirs is None or any(map(shown.startswith, problems))
        assert is_known, (shown, problems)
        assert not is_malformed or theirs is None, shown
        return "malformed" if theirs is None else "against a rule"
    assert theirs is not None, "protobuf rejects the message"
    assert not problems, problems
    is_request = kind == "request"
    check_same(reading_of_ours(ours), expected := reading_of_theirs(theirs, is_request))
    if options & 2:
        compare_encoded(ours, theirs, expected, is_request)
    del ours
    if options & 1:
        source.append(0)  # raises BufferError if any view of the message remains
    return "accepted"


def compare_metadata(source: Any, theirs: Any) -> str:
    """Compare a message that is read as a dict of its fields."""
    try:
        ours = reader.read_message(source, METADATA)
    except tw.HeaderError as error:
        check_error(error, len(source))
        assert theirs is None, error
        return "malformed"
    assert theirs is not None, "protobuf rejects the message"
    expected = {"name": theirs.name, "versions": [*theirs.versions], "platform": theirs.platform}
    for member in ("inputs", "outputs"):
        expected[member] = [
            {"name": item.name, "datatype": item.datatype, "shape": list(item.shape)}
            for item in getattr(theirs, member)
        ]
    assert ours == expected
    again = type(theirs).FromString(writer.write_message(ours, METADATA))
    theirs.DiscardUnknownFields()
    assert again == theirs
    return "accepted"


def compare_split(kind: str, message: bytes, theirs: Any) -> None:
    """Compare the message without its raw contents, and these."""
    is_request = kind == "request"
    number = RAW_INPUT_CONTENTS if is_request else RAW_OUTPUT_CONTENTS
    head, contents = reader.split_field(message, number)
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
        whole = writer.append_fields(head, number, contents)
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
    outside = [not is_shared(tensor) for tensor in tensors]
    found, total, rest = [], 0, list(raw)
    for items, noun in ((tensors, side), (raw, "raw content"), (requested, "requested output")):
        if len(items) > limits.max_tensors:
            limit = format_count(noun, limits.max_tensors)
            found.append(f"HeaderError: the message has more than {limit}, which is the limit")
    if raw and len(raw) != sum(outside):
        numbers = format_count("raw content", len(raw)), format_count(side, sum(outside))
        found.append("LayoutError: the message has {}, but {} outside of shared ".format(*numbers))
    for tensor, is_outside in zip(tensors, outside, strict=True):
        subject = format_subject(side, tensor.name)
        total = min(total + max(prod(tensor.shape), 0), 2**63 - 1)
        if total > limits.max_elements:
            count = format_count("element", total)
            found.append(f"LayoutError: the message has {count} up to {subject}; the limit is ")
        content = rest.pop(0) if is_outside and rest else None
        found += name_problems(subject, tensor.name, limits)
        found.append(
            entry_problem(tensor, subject, limits)
            or contents_problem(tensor, subject)
            or source_problem(tensor, subject, side, content)
            or raw_problem(tensor, content or b"", subject, limits)
        )
    for output in requested:
        subject = format_subject("output", output.name)
        found += name_problems(subject, output.name, limits)
        found.append(option_problem(output.parameters, "binary_data", subject))
    for items, noun in ((tensors, side), (requested, "output")):
        names = Counter(item.name for item in items)
        twice = [format_subject(noun, name) for name in names if names[name] > 1]
        found += [f"HeaderError: {subject} appears twice" for subject in twice]
    if is_request:
        found.append("" if tensors else "HeaderError: the request has no inputs")
        found.append(option_problem(message.parameters, "binary_data_output", "the request"))
    return [problem for problem in found if problem]


def is_shared(tensor: Any) -> bool:
    return type(value_of(tensor.parameters, "shared_memory_region")) is str


def option_problem(parameters: Any, key: str, subject: str) -> str:
    value = value_of(parameters, key)
    if value is None or type(value) is bool:
        return ""
    return f"HeaderError: {key} of {subject} must be true or false, not {format_value(value)}"


def name_problems(subject: str, name: str, limits: tw.Limits) -> list[str]:
    nbytes = len(name.encode())
    found = [f"HeaderError: the name of {subject} contains a NUL"] if "\0" in name else []
    if nbytes > limits.max_name_nbytes:
        found.append(f"HeaderError: the name of {subject} is {format_count('byte', nbytes)} long; ")
    return found


def entry_problem(tensor: Any, subject: str, limits: tw.Limits) -> str:
    """Return the rule that the datatype, the region or the shape of a tensor breaks, or ""."""
    datatype, shape = tensor.datatype, list(tensor.shape)
    region = value_of(tensor.parameters, "shared_memory_region")
    itemsize = reference.SIZES.get(datatype, reference.REFERENCE_SIZE)
    if datatype not in reference.DATATYPES:
        return f"HeaderError: {subject} has an unknown datatype: {format_value(datatype)}"
    if region is not None and type(region) is not str:
        shown = format_value(region)
        return f"HeaderError: shared_memory_region of {subject} must be a string, not {shown}"
    if len(shape) > limits.max_rank:
        return f"LayoutError: {subject} has {format_count('dimension', len(shape))}; the limit is "
    if min(shape, default=0) < 0:
        return f"LayoutError: {subject} has a negative dimension: shape {format_shape(shape)}"
    if prod((dim for dim in shape if dim), start=itemsize) >= 2**63:
        return f"LayoutError: {subject} is too large to address: "
    return ""


def contents_problem(tensor: Any, subject: str) -> str:
    """Return the rule that the typed contents of a tensor break, or ""."""
    number = CONTENTS.get(tensor.datatype, 0)
    for other in range(1, 9):
        if other != number and getattr(tensor.contents, MEMBERS[other]):
            return f"HeaderError: {subject} is {tensor.datatype}, which can only be sent as "
    values = typed_values(tensor)
    if values and len(values) != prod(tensor.shape):
        return f"LayoutError: {subject} does not match its shape: "
    low, high = ACCEPTED.get(tensor.datatype, (None, None))
    for i, value in enumerate(values if low is not None else ()):
        if not low <= value <= high:
            return f"ElementError: element {i} of {subject} is {value}, which is out of range "
    return ""


def source_problem(tensor: Any, subject: str, side: str, content: bytes | None) -> str:
    """Return how a tensor has more or less than one source of its data, or ""."""
    has_values = bool(typed_values(tensor))
    one_of = f"HeaderError: {subject} must have exactly one of contents, raw_{side}_contents and "
    if is_shared(tensor):
        has_both = f"{one_of}shared_memory_region, but has contents and shared_memory_region"
        return has_both if has_values else ""
    if content is None:
        is_missing = prod(tensor.shape) > 0 and not has_values
        return f"{one_of}shared_memory_region, but has none" if is_missing else ""
    both = f"HeaderError: {subject} has both contents and raw_{side}_contents"
    return both if has_values else ""


def raw_problem(tensor: Any, content: bytes, subject: str, limits: tw.Limits) -> str:
    """Return the rule that raw contents break, or "". Without contents, other rules apply."""
    if is_shared(tensor) or typed_values(tensor):
        return ""
    n_elements = prod(tensor.shape)
    if tensor.datatype == "BYTES":
        return bytes_problem(content, n_elements, subject)
    expected = n_elements * reference.SIZES[tensor.datatype]
    if len(content) != expected:
        return f"LayoutError: {subject} does not match its datatype: "
    if tensor.datatype == "BOOL" and limits.check_bool and max(content, default=0) > 1:
        i = next(i for i, byte in enumerate(content) if byte > 1)
        return f"ElementError: element {i} of {subject} must be 0 or 1 (BOOL), not {content[i]} ("
    return ""


def bytes_problem(content: bytes, n_elements: int, subject: str) -> str:
    position = 0
    if 4 * n_elements <= len(content):
        for i in range(n_elements):
            if position == len(content):
                break
            length = int.from_bytes(content[position : position + 4], "little")
            if position + 4 > len(content) or position + 4 + length > len(content):
                return f"ElementError: element {i} of {subject} is truncated: "
            position += 4 + length
        else:
            if position == len(content):
                return ""
    return f"LayoutError: {subject} does not match its shape: "


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
    requested = [
        (o.name, value_of(o.parameters, "binary_data"), parameters_of(o.parameters, "binary_data"))
        for o in (message.outputs if is_request else ())
    ]
    return {
        "names": [text or None for text in (message.model_name, message.model_version, message.id)],
        "parameters": parameters_of(message.parameters),
        "tensors": [reading_of_tensor(tensor, raw) for tensor in tensors],
        "outputs": requested,
    }


def reading_of_tensor(tensor: Any, raw: list[bytes]) -> tuple[Any, ...]:
    """Return what a tensor has. Its raw content is the next one, which is removed."""
    region = value_of(tensor.parameters, "shared_memory_region")
    without = ["binary_data_size", *([] if region is not None else ["shared_memory_region"])]
    parameters = parameters_of(tensor.parameters, *without)
    front = (tensor.name, tensor.datatype, tuple(tensor.shape), parameters)
    if region is not None:
        return (*front, None, False)
    if raw:
        return (*front, comparable(tensor.datatype, raw.pop(0)), True)
    values = typed_values(tensor)
    data = reference.pack(tensor.datatype, values) if values else b""
    return (*front, comparable(tensor.datatype, data), False)


def typed_values(tensor: Any) -> list[Any]:
    """Return the elements of the field of `contents` that belongs to the datatype."""
    number = CONTENTS.get(tensor.datatype, 0)
    return list(getattr(tensor.contents, MEMBERS[number])) if number else []


def comparable(datatype: str, data: bytes) -> Any:
    """Return the data of a tensor. All NaNs are equal: protobuf's Python changes their bits."""
    if datatype in ("FP32", "FP64"):
        values = reference.unpack(datatype, data, len(data) // reference.SIZES[datatype])
        if any(map(math.isnan, values)):
            return repr(values)
    return data


def reading_of_ours(message: Any) -> Reading:
    outputs = message.outputs if isinstance(message, tw.InferRequest) else None
    return {
        "names": [message.model_name, message.model_version, message.id],
        "parameters": sorted_parameters(message.parameters),
        "tensors": [
            (t.name, t.datatype, t.shape, sorted_parameters(t.parameters), data_of(t), t.binary)
            for t in tensors_of(message)
        ],
        "outputs": [(o.name, o.binary, sorted_parameters(o.parameters)) for o in outputs or ()],
    }


def sorted_parameters(parameters: Any) -> str | None:
    return repr(sorted(plain(parameters).items())) if parameters else None


def data_of(tensor: tw.Tensor) -> Any:
    if isinstance(tensor.data, tw.BytesArray):
        elements = tensor.data.reshape((tensor.data.size,)).tolist()
        assert reference.elements(elements) == tensor.data.wire
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
    # Typed contents become raw ones, and `binary` is not sent.
    raw = {
        **expected,
        "tensors": [(*entry[:5], entry[4] is not None) for entry in expected["tensors"]],
        "outputs": [(name, None, parameters) for name, _, parameters in expected["outputs"]],
    }
    again = type(theirs).FromString(encoded)
    check_same(reading_of_theirs(again, is_request), raw)
    assert again.ByteSize() == len(encoded)
    check_same(reading_of_ours(decode(encoded, limits=UNCHECKED)), raw)
    rewritten = theirs.SerializeToString()
    check_same(reading_of_ours(decode(rewritten, limits=UNCHECKED)), expected)


def check_same(actual: Reading, expected: Reading) -> None:
    assert actual == expected, f"\n{actual}\n{expected}"

"""A check of the gRPC codec with protobuf's generated classes and the rules of WIRE.md 12."""

from __future__ import annotations

import math
from itertools import chain
from math import prod
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

import tensorwire as tw
import tensorwire.grpc
from fuzz.comparison import check_error, exact, tensors_of
from support import reference
from support.grpc_strategies import CONTENTS, RAW
from tensorwire._codec.grpc import reader, writer
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


def compare(kind: str, message: bytes, options: int = 0) -> None:
    """A message is read like protobuf reads it, or breaks a rule; and written likewise.

    The bits of the options: the memory can be resized afterwards, the
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
        compare_metadata(source, theirs)
        return
    limits = LIMITS[options & 4 == 4]
    broken = set() if theirs is None else broken_rules(kind, theirs, limits)
    ours: Any = None
    try:
        if kind == "stream":
            server_error, ours = reader.read_stream_response(source, limits)
            assert theirs is not None, "protobuf rejects the message"
            assert (server_error or "") == theirs.error_message
            if server_error is not None:
                assert ours is None
                return
            theirs = theirs.infer_response
        else:
            decode = tw.grpc.decode_request if kind == "request" else tw.grpc.decode_response
            ours = decode(source, limits=limits)
    except tw.DecodeError as error:
        check_error(error, len(message))
        if theirs is None:
            return
        assert not any(text in str(error) for text in MALFORMED), error
        assert type(error).__name__ in broken, (error, broken)
        return
    assert theirs is not None, "protobuf rejects the message"
    assert not broken, broken
    is_request = kind == "request"
    check_same(reading_of_ours(ours), expected := reading_of_theirs(theirs, is_request))
    if options & 2:
        compare_encoded(ours, theirs, expected, is_request)
    del ours
    if options & 1:
        source.append(0)  # raises BufferError if any view of the message remains


def compare_metadata(source: Any, theirs: Any) -> None:
    """Compare a message that is read as a dict of its fields."""
    try:
        ours = reader.read_fields(source, METADATA)
    except tw.HeaderError as error:
        check_error(error, len(source))
        assert theirs is None, error
        return
    assert theirs is not None, "protobuf rejects the message"
    expected = {"name": theirs.name, "versions": [*theirs.versions], "platform": theirs.platform}
    for member in ("inputs", "outputs"):
        expected[member] = [
            {"name": item.name, "datatype": item.datatype, "shape": list(item.shape)}
            for item in getattr(theirs, member)
        ]
    assert ours == expected
    again = type(theirs).FromString(writer.write_fields(ours, METADATA))
    theirs.DiscardUnknownFields()
    assert again == theirs


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


def broken_rules(kind: str, theirs: Any, limits: tw.Limits) -> set[str]:
    """Return the classes of the errors that may be raised, or nothing if no rule is broken.

    The error that is raised for each rule is tested with support/grpc_cases.py.
    """
    message = theirs.infer_response if kind == "stream" else theirs
    is_request = kind == "request"
    tensors = message.inputs if is_request else message.outputs
    rest = list(message.raw_input_contents if is_request else message.raw_output_contents)
    requested = message.outputs if is_request else ()
    found = set[str]()

    def is_wrong_name(name: str) -> bool:
        return "\0" in name or len(name.encode()) > limits.max_name_nbytes

    if rest and len(rest) != sum(not is_shared(tensor) for tensor in tensors):
        found.add("LayoutError")
    n_elements = sum(max(prod(tensor.shape), 0) for tensor in tensors)
    if min(n_elements, 2**63 - 1) > limits.max_elements:
        found.add("LayoutError")
    names = [[item.name for item in items] for items in (tensors, requested)]
    options = [value_of(output.parameters, "binary_data") for output in requested]
    if is_request:
        options.append(value_of(message.parameters, "binary_data_output"))
    if (
        max(len(tensors), len(rest), len(requested)) > limits.max_tensors
        or any(len(set(each)) < len(each) for each in names)
        or any(map(is_wrong_name, chain(*names)))
        or not all(option is None or type(option) is bool for option in options)
        or (is_request and not tensors)
    ):
        found.add("HeaderError")
    for tensor in tensors:
        content = rest.pop(0) if rest and not is_shared(tensor) else None
        try:
            check_tensor(tensor, content, limits)
        except reference.HeaderError:
            found.add("HeaderError")
        except reference.WireError:  # elements may be read before they are counted
            found |= {"LayoutError", "ElementError"}
    return found


def is_shared(tensor: Any) -> bool:
    return type(value_of(tensor.parameters, "shared_memory_region")) is str


def check_tensor(tensor: Any, content: bytes | None, limits: tw.Limits) -> None:
    """Raise the error of a tensor that has this raw content."""
    datatype, values = tensor.datatype, typed_values(tensor)
    region = value_of(tensor.parameters, "shared_memory_region")
    if datatype not in reference.DATATYPES or not (region is None or is_shared(tensor)):
        raise reference.HeaderError(datatype, region)
    n_elements = reference.element_count(datatype, list(tensor.shape))
    if len(tensor.shape) > limits.max_rank:
        raise reference.LayoutError(tensor.shape)
    others = [MEMBERS[number] for number in range(1, 9) if number != CONTENTS.get(datatype, 0)]
    if any(getattr(tensor.contents, member) for member in others):
        raise reference.HeaderError(tensor.contents)
    if values and len(values) != n_elements:
        raise reference.LayoutError(values)
    low, high = ACCEPTED.get(datatype, (None, None))
    if low is not None and not all(low <= value <= high for value in values):
        raise reference.ElementError(values)
    n_sources = bool(values) + (content is not None) + is_shared(tensor)
    if n_sources > 1 or (n_sources == 0 and n_elements):
        raise reference.HeaderError(n_sources)
    if content is not None:
        is_any_byte = datatype == "BOOL" and not limits.check_bool
        reference.unpack("UINT8" if is_any_byte else datatype, content, n_elements)


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
    return repr(sorted(parameters.items())) if parameters else None


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

"""The full text of an error for each reason to refuse a message, by the case's id.

Where ``...`` ends it, the JSON parser's own words follow, which change with its versions.
"""

MESSAGES: dict[str, str] = {
    "B6 header length -1": "Inference-Header-Content-Length is negative: -1",
    "B6 header length '-1'": "Inference-Header-Content-Length is not a number: '-1'",
    "B7 header length 102": "Inference-Header-Content-Length is 102, the body has 101 bytes",
    "HEAD1 header length 18446744073709551709": (
        "Inference-Header-Content-Length is more than 2^64, the body has 101 bytes"
    ),
    "HEAD1 header length '9999999999999999999": (
        "Inference-Header-Content-Length is not a number: "
        "'9999999999999999999999999999999999999999'..."
    ),
    "B13 B14 header length 94": "the JSON header is malformed: ...",
    "B13 B14 header length 92": "the JSON header is malformed: it ends too early at byte 92",
    "B1 no header length, the bytes begin with NUL": (
        "the JSON header is malformed: trailing characters at byte 94 "
        "(is Inference-Header-Content-Length missing?)"
    ),
    "B2 no header length, the bytes begin with A": (
        "the JSON header is malformed: trailing characters at byte 94 "
        "(is Inference-Header-Content-Length missing?)"
    ),
    "C31 root []": "the JSON header does not fit the protocol: ...",
    "R7 empty body, no header length": "the JSON header is empty",
    "OVMS empty object": "the JSON header does not fit the protocol: ...",
    "J23 utf-8-sig, NaN False": "the JSON header is malformed: ...",
    "J23 utf-8-sig, NaN True": "the JSON header is malformed: ...",
    "J23 utf-16-le, NaN False": "the JSON header is malformed: ...",
    "Y17 Latin-1": (
        "the JSON header is not UTF-8: invalid continuation byte at byte 22 (is "
        "Inference-Header-Content-Length missing?)"
    ),
    "Y16 a surrogate in a name": "the JSON header is malformed: ...",
    "9 KServe trailing comma": "the JSON header is malformed: ...",
    "HEAD4 nested without end": (
        "the JSON is nested too deep: level 129 begins at byte 137, at most 128 are accepted"
    ),
    "HEAD4 data nested without end": (
        "the JSON is nested too deep: level 129 begins at byte 190, at most 128 are accepted"
    ),
    "129 levels in an unknown member": (
        "the JSON is nested too deep: level 129 begins at byte 206, at most 128 are accepted"
    ),
    "129 levels, a bare NaN": (
        "the JSON is nested too deep: level 129 begins at byte 207, at most 128 are accepted"
    ),
    "a name of 1366 letters, 4098 bytes": (
        "the name of input '"
        + "\u20ac" * 80
        + "'... is too long: 4098 bytes, at most 4096 are accepted"
    ),
    "J5 -NaN": "the JSON header is malformed: ...",
    "no number: 01": "the JSON header is malformed: ...",
    "no number: 0x1": "the JSON header is malformed: ...",
    "C29 inputs empty": "the request has no inputs",
    "C28 inputs [{}]": "the JSON header does not fit the protocol: ...",
    "C20 C21 STRING": "input 'x' has an unknown datatype: 'STRING'",
    "X6 NUL in a name": "the name of input 'x\\x00y' contains a NUL",
    "C23 two inputs of a name": "input 'x' appears twice",
    "C26 binary_data 1": "binary_data of output 'o' is true or false, not 1",
    "C27 binary_data_output 1": "binary_data_output of the request is true or false, not 1",
    "an error reply": "the body is a server's error, not a message: no such model",
    "C6 data and size": (
        "input 'x' needs exactly one of data, binary_data_size and shared_memory_region, "
        "it has data and binary_data_size"
    ),
    "C6 data and region": (
        "input 'x' needs exactly one of data, binary_data_size and shared_memory_region, "
        "it has data and shared_memory_region"
    ),
    "C6 size and region": (
        "input 'x' needs exactly one of data, binary_data_size and shared_memory_region, "
        "it has binary_data_size and shared_memory_region"
    ),
    "C7 neither": (
        "input 'x' needs exactly one of data, binary_data_size and shared_memory_region, "
        "it has none"
    ),
    "region a number": "shared_memory_region of input 'x' is a string, not 1",
    "J19 data of no elements": "the JSON data of input 'x' is 'x', not a list",
    "data True": "the JSON data of input 'x' is true, not a list",
    "data {'0': 7}": "the JSON data of input 'x' is an object, not a list",
    "J1-J4 FP16 as JSON, request": "input 'x' is FP16 with JSON data: it travels only binary",
    "C8-C11 OVMS size '8'": "binary_data_size of input 'x' is an integer, not '8'",
    "C8-C11 OVMS size True": "binary_data_size of input 'x' is an integer, not True",
    "C8-C11 OVMS size {}": "binary_data_size of input 'x' is an integer, not {}",
    "no header length, size 8": (
        "the body ends inside input 'x': 8 bytes are declared, 0 remain (body byte 91)"
    ),
    "C2 long by 2": (
        "the body has 2 bytes after its last tensor: the header of 91 bytes and 1 tensors"
        " end at byte 99 of 101"
    ),
    "9 KServe request as printed": (
        "input 'input0' does not match its datatype: FP16 [2, 2] needs 8 bytes, "
        "binary_data_size is 16"
    ),
    "C10 X2 size -8": "binary_data_size of input 'x' is negative: -8",
    "C10 X2 size 9223372036854775808": (
        "binary_data_size of input 'x' passes 2^63 - 1 bytes: 9223372036854775808"
    ),
    "C10 X2 size 18446744073709551624": (
        "binary_data_size of input 'x' passes 2^63 - 1 bytes: more than 2^64"
    ),
    "C12 FP32 [-2], size 8": "input 'x' has a negative dimension: shape [-2]",
    "C14 FP32 [18446744073709551615], size 8": (
        "input 'x' is too large to address: FP32 [18446744073709551615] passes 2^63 - 1 bytes"
    ),
    "65 dimensions": "input 'x' has 65 dimensions, at most 64 are accepted",
    "Y2 two for BYTES [3]": (
        "input 'x' does not match its shape: BYTES [3] needs 3 elements, its bytes hold 2"
    ),
    "Y3 two for BYTES [1]": (
        "input 'x' does not match its shape: the 1 elements of BYTES [1] take 6 bytes, "
        "there are 12 (body byte 99)"
    ),
    "Y11 no bytes for BYTES [2]": (
        "input 'x' does not match its shape: BYTES [2] needs at least 8 bytes, there are 0"
    ),
    "J15 too few": (
        "input 'x' does not match its shape: INT32 [2] needs 2 elements, its JSON data has 1"
    ),
    "Y4 payload cut": (
        "element 0 of input 'x' is truncated: its prefix declares 5 bytes, 2 remain (body byte 92)"
    ),
    "Y5 prefix cut": (
        "element 1 of input 'x' is truncated: a length prefix takes 4 bytes, 2 remain "
        "(body byte 101)"
    ),
    "R14 BOOL 2": (
        "element 2 of input 'x' is not a BOOL: its byte is 2, 0 or 1 is allowed (body byte 93)"
    ),
    "J8 the last of many": (
        "element 49 of input 'x' does not fit its datatype: INT8 takes -128 to 127, the "
        "value is 128"
    ),
    "FP64 1e400": "the JSON header does not fit the protocol: ...",
    "FP64 10^400 in digits": (
        "element 0 of input 'x' does not fit its datatype: FP64 takes magnitudes up to "
        "1.7976931348623157e+308, the value is an integer of 1329 bits"
    ),
    "FP64 -1e400 behind a bare NaN": "the JSON header is malformed: ...",
    "J7 FP32 JSON 1e39": (
        "element 0 of input 'x' does not fit its datatype: FP32 takes magnitudes up to "
        "3.4028234663852886e+38, the value is 1e+39"
    ),
    "J10 INT32 JSON 1.0": (
        "element 0 of input 'x' does not fit its datatype: INT32 takes integers, the value is 1.0"
    ),
    "J10 INT32 JSON true": (
        "element 0 of input 'x' does not fit its datatype: INT32 takes integers, the value is true"
    ),
    "J10 INT32 JSON null": (
        "element 0 of input 'x' does not fit its datatype: INT32 takes integers, the value is null"
    ),
    "J10 INT32 JSON NaN": (
        "element 0 of input 'x' does not fit its datatype: INT32 takes integers, the value is nan"
    ),
    "J10 INT32 JSON {}": (
        "element 0 of input 'x' does not fit its datatype: INT32 takes integers, the"
        " value is an object"
    ),
    "J10 UINT64 JSON false": (
        "element 0 of input 'x' does not fit its datatype: UINT64 takes integers, the "
        "value is false"
    ),
    "J12 BOOL JSON 1": (
        "element 0 of input 'x' does not fit its datatype: BOOL takes true and false, the"
        " value is 1"
    ),
    "J12 BOOL JSON null": (
        "element 0 of input 'x' does not fit its datatype: BOOL takes true and false, the"
        " value is null"
    ),
    "J13 FP32 JSON true": (
        "element 0 of input 'x' does not fit its datatype: FP32 takes numbers, the value is true"
    ),
    'J13 FP32 JSON "1.0"': (
        "element 0 of input 'x' does not fit its datatype: FP32 takes numbers, the value is '1.0'"
    ),
    "J13 FP32 JSON {}": (
        "element 0 of input 'x' does not fit its datatype: FP32 takes numbers, the "
        "value is an object"
    ),
    "Y14 BYTES JSON 1": (
        "element 0 of input 'x' does not fit its datatype: BYTES takes strings, the value is 1"
    ),
    "Y14 BYTES JSON null": (
        "element 0 of input 'x' does not fit its datatype: BYTES takes strings, the value is null"
    ),
    "Y14 BYTES JSON true": (
        "element 0 of input 'x' does not fit its datatype: BYTES takes strings, the value is true"
    ),
    "Y14 BYTES JSON {}": (
        "element 0 of input 'x' does not fit its datatype: BYTES takes strings, the "
        "value is an object"
    ),
    "Y16 lone surrogate a\\udc00b": "the JSON header is malformed: ...",
}

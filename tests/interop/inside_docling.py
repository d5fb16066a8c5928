"""docling's remote models against `tensorwire serve`, run in the environment "docling".

Each test runs with docling's own client and with the one of docling_client.py. The variable
TENSORWIRE_SERVED has the addresses for HTTP and gRPC. The models are those of served_models.py.
"""

from __future__ import annotations

import json
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docling.backend.pypdfium2_backend import PyPdfiumDocumentBackend
from docling.datamodel.accelerator_options import AcceleratorOptions
from docling.datamodel.base_models import InputFormat, Page
from docling.datamodel.document import ConversionResult, InputDocument
from docling.datamodel.image_classification_engine_options import (
    ApiKserveV2ImageClassificationEngineOptions,
)
from docling.datamodel.object_detection_engine_options import (
    ApiKserveV2ObjectDetectionEngineOptions,
)
from docling.datamodel.pipeline_options import KserveV2OcrOptions, OcrMode
from docling.datamodel.stage_model_specs import (
    ImageClassificationModelSpec,
    ObjectDetectionModelSpec,
)
from docling.models.inference_engines.common import kserve_v2_grpc
from docling.models.inference_engines.image_classification import create_image_classification_engine
from docling.models.inference_engines.image_classification.base import (
    ImageClassificationEngineInput,
)
from docling.models.inference_engines.object_detection import create_object_detection_engine
from docling.models.inference_engines.object_detection.base import ObjectDetectionEngineInput
from docling.models.stages.ocr.kserve_v2_ocr_model import KserveV2OcrModel
from PIL import Image, ImageDraw

from interop import docling_client

ADDRESSES = dict(zip(("http", "grpc"), os.environ["TENSORWIRE_SERVED"].split(), strict=True))
CONSUMERS = (
    "docling.models.stages.ocr.kserve_v2_ocr_model",
    "docling.models.inference_engines.object_detection.api_kserve_v2_engine",
    "docling.models.inference_engines.image_classification.api_kserve_v2_engine",
)
LABELS = {0: "text", 1: "table"}


# Over gRPC and without binary data, docling's own client works with no server that responds with
# raw contents, such as Triton and tensorwire.
SETUPS = [
    (client, transport, is_binary)
    for client in ("docling", "tensorwire")
    for transport in ("http", "grpc")
    for is_binary in (True, False)
    if (client, transport, is_binary) != ("docling", "grpc", False)
]


@pytest.fixture(params=SETUPS, ids=str)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that every model of docling takes, for docling's clients or ours."""
    client, transport, is_binary = request.param
    if client == "tensorwire":
        for name in CONSUMERS:
            monkeypatch.setattr(f"{name}.KserveV2HttpClient", docling_client.HttpClient)
        monkeypatch.setattr(kserve_v2_grpc, "KserveV2GrpcClient", docling_client.GrpcClient)
    return {
        "url": ADDRESSES[transport],
        "transport": transport,
        "use_binary_data": is_binary,
        "headers": {"Authorization": "Bearer a"},
        "grpc_metadata": {"authorization": "Bearer a"},
        "timeout": 20.0,
    }


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Return a folder with the configuration of a model, which docling reads for its images."""
    folder = tmp_path / "org--model"
    folder.mkdir()
    processor = {
        "image_processor_type": "RTDetrImageProcessor",
        "size": {"height": 32, "width": 48},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    config = {"model_type": "rt_detr", "id2label": LABELS}
    (folder / "config.json").write_text(json.dumps(config))
    return tmp_path


def images() -> list[Image.Image]:
    return [Image.new("RGB", (50, 40), "white"), Image.new("RGB", (20, 30), (77, 77, 77))]


# --- text recognition ----------------------------------------------------------------------------


def recognize(**options: Any) -> tuple[Page, ConversionResult]:
    """Let docling recognize the text of a page that has a black rectangle."""
    image = Image.new("RGB", (200, 100), "white")
    ImageDraw.Draw(image).rectangle((20, 30, 119, 59), fill="black")
    pdf = BytesIO()
    image.save(pdf, "PDF", resolution=72)
    document = InputDocument(
        path_or_stream=BytesIO(pdf.getvalue()),
        format=InputFormat.PDF,
        filename="page.pdf",
        backend=PyPdfiumDocumentBackend,
    )
    page = Page(page_no=1)
    page._backend = document._backend.load_page(0)
    page.size = page._backend.get_size()
    page.parsed_page = page._backend.get_segmented_page()
    result = ConversionResult(input=document)
    model = KserveV2OcrModel(
        True,
        None,
        KserveV2OcrOptions(mode=OcrMode.FULL_PAGE, **options),
        AcceleratorOptions(),
        enable_remote_services=True,
    )
    [page] = model(result, [page])
    model.close()
    return page, result


@pytest.mark.parametrize("language", ["en", "ch_doc", "日本語"])
@pytest.mark.parametrize("version", [None, "1"])
def test_text(options: dict[str, Any], language: str, version: str | None) -> None:
    parameters = {"confidence": 0.75, "flag": True, "name": "é"}
    page, result = recognize(
        **options, lang=[language], model_version=version, request_parameters=parameters
    )
    assert result.errors == []
    [cell] = page.cells
    assert (cell.text, cell.confidence) == (f"text «{language}»", 0.75)
    box = cell.rect.to_bounding_box()
    assert [box.l, box.t, box.r, box.b] == pytest.approx([20, 30, 120, 60], abs=0.5)


@pytest.mark.parametrize(
    ("model", "text"), [("none", "model 'none' is not known"), ("double", "unexpected input")]
)
def test_errors_of_the_server(options: dict[str, Any], model: str, text: str) -> None:
    """docling keeps the page, and records the error."""
    page, result = recognize(**options, model_name=model)
    [error] = result.errors
    assert text in error.error_message
    assert page.cells == []


# --- objects and classes -------------------------------------------------------------------------


def test_objects(options: dict[str, Any], artifacts: Path) -> None:
    engine = create_object_detection_engine(
        options=ApiKserveV2ObjectDetectionEngineOptions(model_name="detector", **options),
        model_spec=ObjectDetectionModelSpec(name="model", repo_id="org/model"),
        enable_remote_services=True,
        accelerator_options=AcceleratorOptions(),
        artifacts_path=artifacts,
    )
    found = engine(
        [
            ObjectDetectionEngineInput(image=image, metadata={"page": i})
            for i, image in enumerate(images())
        ]
    )
    assert engine.get_label_mapping() == LABELS
    assert [each.label_ids for each in found] == [[1], [1]]
    assert [each.bboxes for each in found] == [[[0, 0, 50, 40]], [[0, 0, 20, 30]]]
    assert [each.scores for each in found] == [[pytest.approx(1)], [pytest.approx(77 / 255)]]
    assert [each.metadata for each in found] == [{"page": 0}, {"page": 1}]
    engine.close()


def test_classes(options: dict[str, Any], artifacts: Path) -> None:
    engine = create_image_classification_engine(
        options=ApiKserveV2ImageClassificationEngineOptions(model_name="classifier", **options),
        model_spec=ImageClassificationModelSpec(name="model", repo_id="org/model"),
        enable_remote_services=True,
        accelerator_options=AcceleratorOptions(),
        artifacts_path=artifacts,
    )
    found = engine([ImageClassificationEngineInput(image=image) for image in images()])
    assert [each.label_ids for each in found] == [[1, 0], [0, 1]]
    for each, logit in zip(found, (5, 77 / 255 * 10 - 5), strict=True):
        first = 1 / (1 + np.exp(-abs(logit)))
        assert each.scores == pytest.approx([first, 1 - first], rel=1e-4)
    engine.close()

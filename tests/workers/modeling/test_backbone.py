"""Backbones: the token that comes out, what the fingerprint holds, and one sentence for every fault."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workers.errors import BackboneError
from workers.modeling import hub
from workers.modeling.backbone import Backbone, BackboneSettings, resolve_device
from workers.modeling.torchvision_compat import define_missing_operators, import_timm

DEMO_FILE = Path(hub.__file__).parent / "assets" / "demo_vit.safetensors"


@pytest.fixture(scope="module")
def demo() -> Backbone:
    return Backbone.load(BackboneSettings())


def plain_demo() -> torch.nn.Module:
    """The demo model as its README describes it, built and loaded by hand."""
    import_timm()
    from safetensors.torch import load_file
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=192,
        depth=6,
        num_heads=3,
        num_classes=0,
        global_pool="token",
        class_token=True,
    )
    model.load_state_dict({k: v.float() for k, v in load_file(str(DEMO_FILE)).items()})
    return model.eval()


def images(n: int, size: int = 32) -> torch.Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(n))


# -- torchvision ---------------------------------------------------------------------------------------------


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_timm_imports_in_a_fresh_process() -> None:
    code = (
        "from workers.modeling.torchvision_compat import import_timm; timm = import_timm();"
        "import torchvision, torch; print(timm.__name__, torch.ops.torchvision.nms is not None)"
    )
    assert in_fresh_python(code) == "timm True"


def test_operators_that_exist_are_left_alone() -> None:
    code = (
        "import torch; lib = torch.library.Library('torchvision', 'DEF')\n"
        "schema = '(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'\n"
        "lib.define('nms' + schema); lib.define('qnms' + schema)\n"
        "from workers.modeling.torchvision_compat import define_missing_operators\n"
        "print(define_missing_operators())"
    )
    assert in_fresh_python(code) == "()"


def test_defining_operators_twice_does_nothing() -> None:
    define_missing_operators()
    assert define_missing_operators() == ()


def test_settings_are_read_without_importing_torch() -> None:
    code = "import sys, workers.modeling.backbone as b; b.BackboneSettings(); print('torch' in sys.modules)"
    assert in_fresh_python(code) == "False"


# -- features ------------------------------------------------------------------------------------------------


def test_the_demo_feature_is_the_final_norm_cls_token(demo: Backbone) -> None:
    model = plain_demo()
    x = images(5)
    with torch.inference_mode():
        expected = model.forward_features(x)[:, 0]
    assert demo.width == 192
    torch.testing.assert_close(demo.features(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224",  # plain
        "deit_tiny_distilled_patch16_224",  # a second token behind [CLS]
        "deit3_small_patch16_224",  # layer scale, position embedding without [CLS]
        "vit_small_patch14_reg4_dinov2",  # registers
        "vit_base_patch32_clip_224",  # norm before the blocks
    ],
)
def test_the_short_cut_through_the_last_block_changes_nothing(name: str) -> None:
    settings = BackboneSettings(name=name, weights="random", image_size=56 if "14" in name else 64)
    backbone = Backbone.load(settings)
    x = images(2, 56 if "14" in name else 64)
    with torch.inference_mode():
        expected = backbone._model.forward_features(x)[:, 0]
    torch.testing.assert_close(backbone.features(x), expected, rtol=1e-4, atol=1e-4)


def test_a_backbone_that_pools_by_averaging_gives_its_cls_token_through_its_last_norm() -> None:
    backbone = Backbone.load(BackboneSettings(name="eva02_tiny_patch14_224", weights="random"))
    model = backbone._model
    x = images(1, 224)
    with torch.inference_mode():
        expected = model.fc_norm(model.forward_features(x)[:, 0])
    torch.testing.assert_close(backbone.features(x), expected, rtol=1e-4, atol=1e-4)


def test_a_feature_does_not_depend_on_its_batch(demo: Backbone) -> None:
    x = images(7)
    alone = torch.cat([demo.features(x[i : i + 1]) for i in range(7)])
    torch.testing.assert_close(demo.features(x), alone, rtol=1e-4, atol=1e-5)


def test_pixels_are_normalised_as_to_tensor_and_normalize_do(demo: Backbone) -> None:
    from torchvision.transforms import functional

    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    expected = torch.stack(
        [functional.normalize(functional.to_tensor(p), [0.5] * 3, [0.5] * 3) for p in pixels]
    )
    assert torch.equal(demo.normalise(torch.from_numpy(pixels)), expected)
    assert torch.equal(demo.embed(pixels), demo.features(expected))


def test_without_normalisation_pictures_are_zero_to_one() -> None:
    backbone = Backbone.load(BackboneSettings(normalise=False))
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 32, 32, 3)
    out = backbone.normalise(pixels)
    assert (out[0] == 0).all()
    assert (out[1] == 1).all()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_gives_nearly_the_same_float32_features(
    demo: Backbone, precision: str
) -> None:
    backbone = Backbone.load(BackboneSettings(), precision=precision)  # type: ignore[arg-type]
    x = images(4)
    out = backbone.features(x)
    assert out.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(out, demo.features(x))
    assert cosine.min() > 0.99
    assert backbone.fingerprint != demo.fingerprint


def test_another_image_size_resamples_the_position_embedding(demo: Backbone) -> None:
    backbone = Backbone.load(BackboneSettings(image_size=64))
    assert backbone.features(images(1, 64)).shape == (1, 192)
    assert backbone.fingerprint != demo.fingerprint
    assert (backbone.transform.height, backbone.transform.width) == (64, 64)


def test_loading_leaves_the_callers_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    Backbone.load(BackboneSettings(weights="random"))
    assert torch.equal(torch.rand(2), expected)


# -- fingerprint ---------------------------------------------------------------------------------------------


def test_the_fingerprint_is_pinned(demo: Backbone) -> None:
    assert demo.fingerprint == "9010d74977fff2958e90f634b9223331"


def test_equal_weights_have_equal_fingerprints_whatever_file_they_come_from(
    demo: Backbone, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "demo.pth"
    torch.save({"state_dict": plain_demo().state_dict(), "epoch": 3}, checkpoint)
    loaded = Backbone.load(BackboneSettings(weights=str(checkpoint)))
    assert loaded.fingerprint == demo.fingerprint
    assert loaded.info() == demo.info()


@pytest.mark.parametrize("change", [{"normalise": False}, {"crop_pct": 0.5}, {"weights": "random"}])
def test_whatever_changes_features_changes_the_fingerprint(
    demo: Backbone, change: dict[str, object]
) -> None:
    assert Backbone.load(BackboneSettings(**change)).fingerprint != demo.fingerprint


def test_info_is_json_and_names_no_place(demo: Backbone) -> None:
    text = json.dumps(demo.info())
    assert "/" not in text
    assert demo.fingerprint in text


def test_random_weights_are_the_same_in_every_process_and_say_so() -> None:
    settings = BackboneSettings(name="vit_tiny_patch16_224", weights="random", image_size=32)
    first, second = Backbone.load(settings), Backbone.load(settings)
    assert first.fingerprint == second.fingerprint
    assert any("random" in note for note in first.notes)


# -- faults --------------------------------------------------------------------------------------------------


def refused(match: str, **settings: object) -> None:
    with pytest.raises(BackboneError, match=match) as caught:
        Backbone.load(BackboneSettings(**settings))
    assert "\n" not in str(caught.value)


def test_a_misspelt_backbone_is_answered_with_the_nearest_names() -> None:
    refused(
        r"'vit_base_patch16_22' is not in timm .* did you mean vit_base_patch16_224",
        name="vit_base_patch16_22",
    )
    refused("did you mean demo_vit", name="demo-vit")


def test_an_unknown_pretrained_tag_is_answered_with_those_that_exist() -> None:
    refused(
        r"no pretrained tag 'nope' .* vit_tiny_patch16_224\.augreg",
        name="vit_tiny_patch16_224.nope",
    )


@pytest.mark.parametrize(
    "name", ["resnet18", "swin_tiny_patch4_window7_224", "vit_base_patch16_siglip_224"]
)
@pytest.mark.parametrize("weights", [None, "random"])
def test_a_backbone_without_cls_token_is_refused_before_its_weights_are_fetched(
    name: str, weights: str | None
) -> None:
    refused(r"has no \[CLS\] token .* such as vit_base_patch16_224", name=name, weights=weights)


def test_an_unreachable_hub_is_said_with_both_ways_out_before_its_client_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timm = import_timm()
    create = timm.create_model

    def without_client(*arguments: Any, pretrained: bool, **options: Any) -> Any:
        assert not pretrained, "asked the hub's client"
        return create(*arguments, pretrained=pretrained, **options)

    monkeypatch.setattr(timm, "create_model", without_client)
    monkeypatch.setattr(hub, "_cached_file", lambda cfg: None)
    monkeypatch.setattr(hub, "_source_host", lambda cfg: ("hub.invalid", 443))
    refused(
        r"hub cannot be reached .* backbone\.weights=PATH .* where the hub is reachable",
        name="vit_tiny_patch16_224",
    )


def test_a_name_server_that_never_answers_does_not_hold_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "PROBE_SECONDS", 0.2)
    answer = threading.Event()

    def connect(*_: object, timeout: float) -> socket.socket:
        answer.wait()
        return socket.socket()

    monkeypatch.setattr(hub.socket, "create_connection", connect)
    assert not hub._reachable(("hub.invalid", 443))  # waiting for the answer, it would never return
    answer.set()


def test_weights_in_the_hub_cache_need_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timm = import_timm()
    from safetensors.torch import save_file

    cached = tmp_path / "model.safetensors"
    save_file(timm.create_model("vit_tiny_patch16_224", num_classes=10).state_dict(), cached)
    monkeypatch.setattr(hub, "_cached_file", lambda cfg: str(cached))
    monkeypatch.setattr(hub, "_reachable", lambda host: pytest.fail("asked the network"))
    from_hub = Backbone.load(BackboneSettings(name="vit_tiny_patch16_224"))
    local = Backbone.load(BackboneSettings(name="vit_tiny_patch16_224", weights=str(cached)))
    assert from_hub.fingerprint == local.fingerprint


def test_a_damaged_file_in_the_hub_cache_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cached = tmp_path / "model.safetensors"
    cached.write_bytes(b"half a download")
    monkeypatch.setattr(hub, "_cached_file", lambda cfg: str(cached))
    refused(
        r"cannot be loaded .* delete .*model\.safetensors if it is damaged",
        name="vit_tiny_patch16_224",
    )


def test_a_name_without_published_weights_says_so() -> None:
    refused("no weights are published .* backbone.weights=PATH", name="vit_base_patch16_plus_240")


def test_weights_of_another_architecture_are_refused_key_by_key() -> None:
    refused(
        r"does not fit 'vit_tiny_patch16_224': 'blocks\.6\.norm1\.weight' and 71 more missing, "
        r"'pos_embed' .* of shape \[1, 17, 192\] instead of \[1, 197, 192\]",
        name="vit_tiny_patch16_224",
        weights=str(DEMO_FILE),
    )


def saved(state: dict[str, torch.Tensor], path: Path) -> str:
    from safetensors.torch import save_file

    save_file(state, path)
    return str(path)


def test_a_missing_an_extra_and_a_misshapen_tensor_are_named(tmp_path: Path) -> None:
    state = dict(plain_demo().state_dict())
    del state["norm.weight"]
    state["extra"] = torch.zeros(1)
    state["cls_token"] = torch.zeros(1, 1, 7)
    refused(
        r"'norm\.weight' missing, 'extra' unexpected, 'cls_token' of shape \[1, 1, 7\]",
        weights=saved(state, tmp_path / "w.safetensors"),
    )


def test_a_classifier_in_the_file_is_left_out(demo: Backbone, tmp_path: Path) -> None:
    state = {**plain_demo().state_dict(), "head.weight": torch.zeros(10, 192)}
    path = saved(state, tmp_path / "w.safetensors")
    assert Backbone.load(BackboneSettings(weights=path)).fingerprint == demo.fingerprint


def test_patch_embeddings_are_never_stretched_to_fit(tmp_path: Path) -> None:
    state = dict(plain_demo().state_dict())
    state["patch_embed.proj.weight"] = torch.zeros(192, 3, 16, 16)
    path = saved(state, tmp_path / "w.safetensors")
    refused(r"'patch_embed\.proj\.weight' of shape", weights=path)
    refused("does not fit 'demo_vit'", weights=path, image_size=64)


def test_positions_of_another_size_need_an_explicit_image_size(tmp_path: Path) -> None:
    state = dict(plain_demo().state_dict())
    state["pos_embed"] = torch.zeros(1, 65, 192)
    path = saved(state, tmp_path / "w.safetensors")
    refused(r"or set backbone\.image_size", weights=path)
    assert Backbone.load(BackboneSettings(weights=path, image_size=64)).width == 192


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("w.safetensors", None, "does not exist"),
        ("w.npz", b"x", r"ends in '\.npz'"),
        ("w.safetensors", b"not safetensors at all", "cannot be read as weights"),
        ("w.pth", b"not a checkpoint", "cannot be read as weights"),
        ("w.pth", b"", "cannot be read as weights"),
    ],
)
def test_a_file_that_holds_no_weights_is_named(
    tmp_path: Path, name: str, content: bytes | None, match: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    refused(match, weights=str(path))


def test_a_checkpoint_never_runs_code(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (Path(tmp_path / "ran"),)  # type: ignore[return-value]

    torch.save({"state_dict": {"a": Hostile()}}, tmp_path / "w.pth")
    refused("cannot be read as weights", weights=str(tmp_path / "w.pth"))
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_without_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 1}, tmp_path / "w.pth")
    refused("holds no tensors", weights=str(tmp_path / "w.pth"))


def test_an_image_size_that_does_not_fill_patches_is_refused() -> None:
    refused(
        r"image_size=30 is not a multiple of the patch size 8 of 'demo_vit': use 32", image_size=30
    )


def test_an_image_size_that_the_architecture_does_not_take_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def create_model(*args: object, **kwargs: object) -> None:
        raise TypeError("__init__() got an unexpected keyword argument 'img_size'")

    monkeypatch.setattr(import_timm(), "create_model", create_model)
    for weights in (None, "random"):
        refused(
            r"cannot be built \(.*'img_size'\): backbone\.image_size=64 may not suit it",
            name="vit_tiny_patch16_224",
            weights=weights,
            image_size=64,
        )


def test_a_cpu_machine_refuses_cuda_and_resolves_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(BackboneError, match="torch sees no GPU"):
        resolve_device("cuda")
    with pytest.raises(BackboneError, match="'tpu' is unknown"):
        resolve_device("tpu")

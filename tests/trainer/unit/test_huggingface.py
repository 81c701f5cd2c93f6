"""Checkpoint directories of transformers are read and written. Both sides give the same logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from glake.errors import InvalidArgument, InvalidOption, NotExported, WrongType
from glake.trainer.models import huggingface, sizes
from glake.trainer.models.decoder import Decoder
from glake.trainer.models.lora import with_lora

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors")

LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
THEIRS = {
    "plain": {"num_key_value_heads": 4},
    "grouped": {"num_key_value_heads": 2},
    "tied": {"num_key_value_heads": 1, "tie_word_embeddings": True},
    "scaled": {"num_key_value_heads": 2, "rope_parameters": LLAMA_3, "head_dim": 16},
}


def tokens() -> torch.Tensor:
    return torch.randint(3, 96, (2, 40), generator=torch.Generator().manual_seed(1))


def theirs(kind: str) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=256,
        **THEIRS[kind],
    )
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():  # else biases are zeros and norms ones, and hide mix-ups
        for own in model.parameters():
            own.add_(torch.randn_like(own) * 0.05)
    return model


def trained(config: Decoder.Config) -> Decoder:
    torch.manual_seed(5)
    model: Decoder = config.build()
    with torch.no_grad():
        for own in model.parameters():
            own.add_(torch.randn_like(own) * 0.05)
    return model


@pytest.mark.parametrize("kind", THEIRS)
@pytest.mark.parametrize("files", ["one", "several"])
def test_logits_equal_those_of_transformers(kind: str, files: str, tmp_path: Path) -> None:
    model, rows = theirs(kind), tokens()
    model.save_pretrained(tmp_path, max_shard_size="20KB" if files == "several" else "1GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (files == "several")
    with torch.no_grad():
        ours = huggingface.load(tmp_path)
        torch.testing.assert_close(ours(rows), model(rows).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", THEIRS)
def test_transformers_reads_what_is_written(kind: str, tmp_path: Path) -> None:
    theirs(kind).save_pretrained(tmp_path / "first")
    model, rows = trained(huggingface.read_config(tmp_path / "first")), tokens()
    huggingface.write(tmp_path / "second", model.config, model.named_parameters())
    read, report = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "second", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(read.eval()(rows).logits, model(rows), rtol=1e-5, atol=1e-5)
    assert huggingface.read_config(tmp_path / "second") == model.config


def test_the_spelling_of_published_llama_checkpoints_is_read(tmp_path: Path) -> None:
    """Checkpoints of transformers 4 have rope_theta and rope_scaling."""
    scaling = {key: value for key, value in LLAMA_3.items() if key != "rope_theta"}
    described = {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500000.0,
        "rope_scaling": scaling | {"original_max_position_embeddings": 8192},
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert huggingface.read_config(tmp_path) == sizes.model("llama-3.1-8b")


def test_lora_is_merged_into_what_is_written(tmp_path: Path) -> None:
    config = with_lora(sizes.llama(2, 32, 4, 64, vocabulary=96), rank=4)
    model, rows = trained(config), tokens()
    huggingface.write(tmp_path, config, model.named_parameters())
    with torch.no_grad():
        merged = huggingface.load(tmp_path)
        assert not any(".base." in name for name, _ in merged.named_parameters())
        torch.testing.assert_close(merged(rows), model(rows), rtol=1e-4, atol=1e-5)


def test_weights_are_loaded_below_lora(tmp_path: Path) -> None:
    plain = trained(sizes.llama(2, 32, 4, 64, vocabulary=96))
    huggingface.write(tmp_path, plain.config, plain.named_parameters())
    model = with_lora(huggingface.read_config(tmp_path)).build()
    huggingface.load_weights(model, huggingface.read_weights(tmp_path))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens()), plain(tokens()))


@pytest.mark.parametrize("name", ["moe-tiny", "gpt-tiny"])
def test_a_model_without_a_form_there_is_refused(name: str, tmp_path: Path) -> None:
    model = sizes.model(name).build()
    with pytest.raises(InvalidOption, match="no form in transformers: .* differ"):
        huggingface.write(tmp_path / "out", model.config, model.named_parameters())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["plain", "scaled"])
def test_the_longest_position_is_kept(kind: str, tmp_path: Path) -> None:
    theirs(kind).save_pretrained(tmp_path / "first")
    model = huggingface.load(tmp_path / "first")
    huggingface.write(tmp_path / "second", model.config, model.named_parameters())
    described = json.loads((tmp_path / "second" / "config.json").read_text())
    assert described["max_position_embeddings"] == 256


def test_bad_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="config.json: No such file"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidArgument, match="is no JSON"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InvalidOption, match="model_type = 'bert'; known is 'llama'"):
        huggingface.load(tmp_path)


def test_a_directory_may_be_written_again(tmp_path: Path) -> None:
    """The index of several files must not outlive them when one file takes their place."""
    theirs("plain").save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    model = trained(sizes.llama(2, 32, 4, 64, vocabulary=96))
    for _ in range(2):
        with torch.no_grad():
            model.norm.weight.mul_(2)
        huggingface.write(tmp_path, model.config, model.named_parameters())
        assert torch.equal(huggingface.load(tmp_path).norm.weight, model.norm.weight)


def test_a_write_that_fails_leaves_no_parts(tmp_path: Path) -> None:
    model = trained(sizes.llama(2, 32, 4, 64, vocabulary=96))
    for weights in (list(model.named_parameters())[:-1], [("norm.bias", torch.ones(1))]):
        with pytest.raises(InvalidArgument):
            huggingface.write(tmp_path, model.config, weights)
        assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_checkpoint_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (trained(sizes.llama(2, 32, 4, 64, vocabulary=96)) for _ in range(2))
    huggingface.write(tmp_path, first.config, first.named_parameters())
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    write_text = Path.write_text

    def full(self: Path, text: str, *more: Any) -> int:
        write_text(self, text[:5], *more)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(NotExported, match="No space left on device. What was there is as it was"):
        huggingface.write(tmp_path, second.config, second.named_parameters())
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ("{", "is no index of files"),
        ('{"weight_map": 3}', "is no index of files"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "names the file '../x.safetensors'"),
    ],
)
def test_a_bad_index_is_named(index: str, text: str, tmp_path: Path) -> None:
    model = trained(sizes.llama(2, 32, 4, 64, vocabulary=96))
    huggingface.write(tmp_path, model.config, model.named_parameters())
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InvalidArgument, match=text):
        huggingface.load(tmp_path)


def test_what_a_description_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "num_attention_heads": 4}')
    with pytest.raises(InvalidArgument, match=r"config\.json lacks 'num_hidden_layers'"):
        huggingface.load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InvalidArgument, match="is no JSON object"):
        huggingface.load(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_hidden_layers": "2"}, "layers: '2' is no int"),
        ({"rope_scaling": 3}, r"rope_scaling\) is 3: no table"),
        ({"rope_scaling": LLAMA_3 | {"factor": "8"}}, "factor: '8' is no float"),
        ({"rms_norm_eps": -1.0}, "epsilon: -1.0 is out of range"),
        ({"tie_word_embeddings": True, "hidden_act": "gelu"}, "hidden_act = 'gelu'; known is"),
        ({"attention_bias": True}, r".*/config\.json: attention_bias = True; known is False"),
    ],
)
def test_a_description_with_a_wrong_value_is_refused(
    wrong: dict[str, Any], text: str, tmp_path: Path
) -> None:
    config = sizes.llama(2, 32, 4, 64, vocabulary=96)
    huggingface.write(tmp_path, config, config.build().named_parameters())
    described = json.loads((tmp_path / "config.json").read_text())
    del described["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(described | wrong))
    with pytest.raises(InvalidOption, match=text):
        huggingface.read_config(tmp_path)


def test_bad_weights_are_named(tmp_path: Path) -> None:
    model = trained(sizes.llama(2, 32, 4, 64, vocabulary=96))
    huggingface.write(tmp_path, model.config, model.named_parameters())
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidArgument, match=r"model\.safetensors is damaged or cut short"):
        huggingface.load(tmp_path)
    path.unlink()
    with pytest.raises(InvalidArgument, match=r"has no model\.safetensors"):
        huggingface.load(tmp_path)
    other = sizes.llama(2, 32, 4, 80, vocabulary=96).build()
    with pytest.raises(InvalidArgument, match=r"up\.weight is \[64, 32\] .* \[80, 32\] here"):
        huggingface.load_weights(other, model.named_parameters())
    with pytest.raises(InvalidArgument, match="no weights for 20 parameters: blocks.0"):
        huggingface.load_weights(model, list(model.named_parameters())[:1])
    with pytest.raises(InvalidArgument, match="no weights for 20 parameters: blocks.0"):
        huggingface.write(tmp_path, model.config, list(model.named_parameters())[:1])
    assert (tmp_path / "config.json").exists()  # what is there stays until it can be replaced


def test_wrong_types_are_glakes_errors(tmp_path: Path) -> None:
    unfit: Any = 5
    for call in (
        lambda: huggingface.load(unfit),
        lambda: huggingface.read_config(unfit),
        lambda: huggingface.write(unfit, sizes.llama(2, 32, 4, 64, vocabulary=96), []),
        lambda: huggingface.write(tmp_path, unfit, []),
        lambda: with_lora(unfit),
    ):
        with pytest.raises(WrongType, match="not an int"):
            call()
    with pytest.raises(InvalidArgument, match="no path has a NUL"):
        huggingface.read_config("a\0b")

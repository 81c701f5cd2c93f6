"""generate() of transformers with glake's cache beside its own, on one stream and on another:
generation.py FOLDER."""

import json

import torch
import transformers

import glake

MODES = {"greedy": {}, "beams": {"num_beams": 3}}


def main() -> None:
    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    model = transformers.LlamaForCausalLM(config).eval().cuda()
    prompts = torch.arange(1, 15).reshape(2, 7).cuda()
    cache = glake.TransformersCache(config)

    def generate(past: object, **mode: int) -> list[list[int]]:
        done = model.generate(
            prompts,
            past_key_values=past,
            max_new_tokens=20,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            **mode,
        )
        return done.tolist()

    same = []
    side = torch.cuda.Stream()
    for mode in MODES.values():
        wanted = generate(None, **mode)
        same.append(generate(cache, **mode) == wanted)
        cache.reset()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            same.append(generate(cache, **mode) == wanted)
            cache.reset()
        torch.cuda.current_stream().wait_stream(side)
    held = glake.stats()["glake.virtual_backed_bytes"]
    print(json.dumps({"same": same, "held_after_reset": held}))


main()

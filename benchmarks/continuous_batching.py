"""What transformers' continuous batching gives a trainer: the reasons for docs/design/torch-engine.md.

    python benchmarks/continuous_batching.py [--write]

A small Llama with random weights, float32 on a CPU. Largest differences between the logprobs it reports and those
of one forward over the whole sequence: for new prompts, for prompts that continue them, at another temperature
against the model's own softmax, and after new weights were written in place while it was paused. And whether a
request gives the same tokens when it is asked again after the generator was seeded alike, alone and in company.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from page import origin, table, write_section

PAGE = Path(__file__).parent.parent / "docs" / "design" / "torch-engine.md"
TOKENS = 24


class Measured:
    """A manager of continuous batching over a model of its own."""

    def __init__(self, temperature: float = 1.0) -> None:
        import torch  # noqa: PLC0415 - an optional dependency
        from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - the same
        from transformers.generation.configuration_utils import ContinuousBatchingConfig  # noqa: PLC0415 - the same

        self._torch: Any = torch
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = LlamaConfig(vocab_size=512, num_key_value_heads=2, max_position_embeddings=2048, **sizes)
        self.model: Any = LlamaForCausalLM(config).eval()
        sampling = GenerationConfig(do_sample=True, temperature=temperature, top_k=0, eos_token_id=-1)
        batching = ContinuousBatchingConfig(
            page_size=16, num_blocks=256, max_batch_tokens=512, return_logprobs=True
        )
        self.manager: Any = self.model.init_continuous_batching(
            generation_config=sampling, continuous_batching_config=batching
        )
        self.manager.start()

    def replies(self, prompts: list[list[int]]) -> list[Any]:
        names = self.manager.add_requests(prompts, max_new_tokens=TOKENS)
        found: dict[str, Any] = {}
        while len(found) < len(names):
            result = self.manager.get_result(timeout=60)
            if result is not None and result.is_finished():
                found[result.request_id] = result
        return [found[name] for name in names]

    def difference(self, prompts: list[list[int]], replies: list[Any]) -> float:
        worst = 0.0
        for ids, reply in zip(prompts, replies, strict=True):
            whole = self._torch.tensor([[*ids, *reply.generated_tokens]])
            with self._torch.no_grad():
                logprobs = self.model(whole, use_cache=False).logits[0].float().log_softmax(-1)
            rows = logprobs[len(ids) - 1 : -1].gather(-1, whole[0, len(ids) :, None])[:, 0].tolist()
            worst = max(worst, *(abs(a - b) for a, b in zip(rows, reply.logprobs, strict=True)))
        return worst

    def change_weights(self) -> None:
        with self.manager.pause(), self._torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.02 * self._torch.randn_like(parameter))

    def seeded(self, prompts: list[list[int]]) -> list[int]:
        """The first request's tokens."""
        self._torch.manual_seed(3)
        return self.replies(prompts)[0].generated_tokens


def facts() -> list[tuple[str, str]]:
    prompts = [[(7 * n + length) % 512 for n in range(length)] for length in (5, 70, 33, 200)]
    plain, warm = Measured(), Measured(temperature=1.5)
    first = plain.replies(prompts)
    longer = [[*ids, *reply.generated_tokens, 1, 2, 3] for ids, reply in zip(prompts, first, strict=True)]
    found = [
        ("new prompts", f"{plain.difference(prompts, first):.0e}"),
        ("prompts that continue them", f"{plain.difference(longer, plain.replies(longer)):.0e}"),
        ("temperature 1.5, against the model's softmax", f"{warm.difference(prompts, warm.replies(prompts)):.2f}"),
    ]
    same = plain.seeded(prompts[:1]) == plain.seeded(prompts)
    plain.change_weights()
    found.append(
        ("after new weights, prompts seen before", f"{plain.difference(longer, plain.replies(longer)):.2f}")
    )
    found.append(("a seed gives the same tokens in other company", "yes" if same else "no"))
    for measured in (plain, warm):
        measured.manager.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    heading = ["logprobs of continuous batching", "largest difference to one forward"]
    text = f"{table(heading, facts())}\n\n{origin('python benchmarks/continuous_batching.py')}"
    print(text)
    if options.write:
        write_section("continuous batching", text, PAGE)


if __name__ == "__main__":
    main()

"""Looped models in Transformers: import it, and its Auto classes know them.

>>> import loopt.hf
>>> from transformers import AutoModelForCausalLM
>>> type(AutoModelForCausalLM.from_config(loopt.hf.LoopedConfig(plan="1x2", d_model=8, n_heads=1, d_ff=8))).__name__
'LoopedForCausalLM'
"""

from __future__ import annotations

from loopt.errors import InputError, MissingPackageError

try:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
except ImportError:
    raise MissingPackageError("loopt.hf needs transformers; install it with: pip install 'loopt[hf]'") from None

from loopt.hf.configuration_looped import LoopedConfig
from loopt.hf.loop_model import LoopedDecoder, LoopedDecoderConfig, loop_model
from loopt.hf.modeling_looped import LoopedForCausalLM, LoopedModel
from loopt.hf.regularizer import CosineRegularizer

AutoConfig.register(LoopedConfig.model_type, LoopedConfig, exist_ok=True)
AutoModel.register(LoopedConfig, LoopedModel, exist_ok=True)
AutoModelForCausalLM.register(LoopedConfig, LoopedForCausalLM, exist_ok=True)
AutoConfig.register(LoopedDecoderConfig.model_type, LoopedDecoderConfig, exist_ok=True)
AutoModelForCausalLM.register(LoopedDecoderConfig, LoopedDecoder, exist_ok=True)

__all__ = [
    "CosineRegularizer",
    "LoopedConfig",
    "LoopedDecoder",
    "LoopedDecoderConfig",
    "LoopedForCausalLM",
    "LoopedModel",
    "load_decoder",
    "loop_model",
]


def load_decoder(name: str) -> PreTrainedModel:
    """Returns a causal language model of Hugging Face, by its name there or its directory. Its code is not trusted."""
    try:
        return AutoModelForCausalLM.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:  # absent, damaged, code of its own
        first = str(error).strip().partition("\n")[0]
        raise InputError(f"hf={name[:200]}: cannot be loaded: {first[:300]}") from None

"""flashomp.transformers: small random models compute with attn_implementation="flashomp" what they do with "eager"."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import flashomp.torch  # noqa: E402
import flashomp.transformers  # noqa: E402

COMMON = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 97, "max_position_embeddings": 128, "head_dim": 16, "pad_token_id": 0,
          "bos_token_id": 1, "eos_token_id": 2}

#: Name of the model: configuration, class. Windows are shorter than the sequences.
MODELS = {
    "llama": lambda: (transformers.LlamaConfig(**COMMON), transformers.LlamaForCausalLM),
    "mistral, window": lambda: (transformers.MistralConfig(**COMMON, sliding_window=7), transformers.MistralForCausalLM),
    "qwen3": lambda: (transformers.Qwen3Config(**COMMON), transformers.Qwen3ForCausalLM),
    "gemma2": lambda: (transformers.Gemma2Config(**COMMON, sliding_window=6, attn_logit_softcapping=3.0,
                                                 query_pre_attn_scalar=16), transformers.Gemma2ForCausalLM),
    "gemma3": lambda: (transformers.Gemma3TextConfig(**COMMON, sliding_window=5, query_pre_attn_scalar=16,
                                                     layer_types=["sliding_attention", "full_attention"]),
                       transformers.Gemma3ForCausalLM),
    "gpt-oss": lambda: (transformers.GptOssConfig(**COMMON, sliding_window=6, num_local_experts=4, num_experts_per_tok=2,
                                                  layer_types=["sliding_attention", "full_attention"]),
                        transformers.GptOssForCausalLM),
    "gpt2": lambda: (transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=128, resid_pdrop=0.0,
                                             embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2),
                     transformers.GPT2LMHeadModel),
    # The window is in the mask alone: layers do not name it.
    "qwen2-moe, window": lambda: (transformers.Qwen2MoeConfig(
        **COMMON, use_sliding_window=True, sliding_window=6, max_window_layers=0, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=32, shared_expert_intermediate_size=32,
        layer_types=["sliding_attention", "full_attention"]), transformers.Qwen2MoeForCausalLM),
    # Layers name a window that the mask does not have.
    "olmoe": lambda: (transformers.OlmoeConfig(**COMMON, sliding_window=4, num_experts=4, num_experts_per_tok=2),
                      transformers.OlmoeForCausalLM),
    "t5": lambda: (transformers.T5Config(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=97,
                                         dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=2),
                   transformers.T5ForConditionalGeneration),
}


@pytest.fixture(autouse=True)
def registered():
    flashomp.transformers.register()


def pair(name):
    """The model with "eager" and with "flashomp", with the same random weights."""
    torch.manual_seed(3)
    config, kind = MODELS[name]()
    eager = kind._from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    with torch.no_grad():
        # Weights of 0.02 would leave attention next to uniform. T5 has larger ones, and does not scale its scores.
        factor = 1.0 if name == "t5" else 4.0
        for parameter in eager.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
            elif parameter.dim() == 1 and parameter.numel() == 4:
                parameter.normal_()  # sinks
    ours = kind._from_config(copy.deepcopy(config), attn_implementation="flashomp").eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == "flashomp"
    return eager, ours


def inputs(name, side):
    """Two sequences of 21 and 13 tokens, padded on one side, or none."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(3, 97, (2, 21), generator=generator)
    mask = torch.ones(2, 21, dtype=torch.int64)
    if side == "left":
        mask[1, :8] = 0
    elif side == "right":
        mask[1, 13:] = 0
    ids = ids * mask
    result = {"input_ids": ids, "attention_mask": mask}
    if name == "t5":
        result["decoder_input_ids"] = torch.randint(3, 97, (2, 9), generator=generator)
    return result


def close(ours, eager, tolerance=2e-5):
    scale = eager.abs().max().item()
    assert (ours - eager).abs().max().item() <= tolerance * max(scale, 1e-3), (ours - eager).abs().max().item() / scale


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_gradients(name, side):
    eager, ours = pair(name)
    given = inputs(name, side)
    real = torch.ones(2, 9, dtype=torch.bool) if name == "t5" else given["attention_mask"].bool()
    before = flashomp.torch.counts()["forward"]
    outputs = []
    for model in (eager, ours):
        logits = model(**given).logits[real]  # what stands at padding is nobody's
        torch.logsumexp(logits.float(), -1).sum().backward()
        outputs.append(logits.detach())
    assert flashomp.torch.counts()["forward"] > before
    close(outputs[1], outputs[0])
    compared = 0
    for (label, parameter), other in zip(eager.named_parameters(), ours.parameters()):
        if parameter.grad is None:
            assert other.grad is None or not other.grad.any(), label
            continue
        close(other.grad, parameter.grad, 2e-4)
        compared += 1
    assert compared > 10


@pytest.mark.parametrize(("name", "cache"), [(name, cache) for name in MODELS for cache in ("dynamic", "static")
                                             if (name, cache) != ("t5", "static")])
def test_generated_tokens(name, cache):
    eager, ours = pair(name)
    given = inputs(name, "left")
    given.pop("decoder_input_ids", None)
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "disable_compile": True}
    if cache == "static":
        options["cache_implementation"] = "static"
    tokens = [model.generate(**given, **options) for model in (eager, ours)]
    assert tokens[0].tolist() == tokens[1].tolist()


def test_masks_stay_small():
    """Padding is [batch, keys]; nothing is as large as queries times keys where the kernels know the mask."""
    masks = transformers.masking_utils
    mask = flashomp.transformers.mask
    padded = torch.ones(2, 12, dtype=torch.bool)
    assert mask(2, 12, 12, attention_mask=padded) is None
    padded[1, :3] = False
    window = masks.sliding_window_causal_mask_function(4)
    for function in (masks.causal_mask_function, window):
        for given in ({"q_length": 12}, {"q_length": 1, "q_offset": 11}):
            made = mask(2, kv_length=12, mask_function=function, attention_mask=padded, **given)
            if function is window:
                assert made.shape == (2, 12, 4) and made.stride(2) == 0
                made = made[:, :, 0]
            assert torch.equal(made, padded)
    # A window's cache begins at a later key, here behind all padding and within it.
    later = {"q_offset": 11, "kv_offset": 7, "mask_function": window}
    made = mask(2, 1, 5, **later, attention_mask=padded)
    assert made.shape == (2, 5, 4) and made.stride() == (0, 0, 0)
    padded[1, :9] = False
    assert torch.equal(mask(2, 1, 5, **later, attention_mask=padded)[:, :, 0], padded[:, 7:])
    # What is not causal with a window, and keys beyond the last query, are whole masks.
    chunked = masks.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int64))
    assert mask(2, 12, 12, mask_function=chunked).shape == (2, 1, 12, 12)
    assert mask(2, 12, 20, attention_mask=padded).shape == (2, 1, 12, 20)
    either = masks.or_masks(masks.causal_mask_function, masks.bidirectional_mask_function)
    assert mask(2, 12, 12, mask_function=either).all()


def test_training_lowers_the_loss_alike():
    losses = []
    for model in pair("llama"):
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        given = inputs("llama", "right")
        labels = given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)
        row = []
        for _ in range(5):
            loss = model(**given, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            row.append(loss.item())
        losses.append(row)
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_bfloat16_and_dropout_run():
    torch.manual_seed(0)
    config, kind = MODELS["llama"]()
    config.attention_dropout = 0.2
    model = kind._from_config(config, attn_implementation="flashomp").to(torch.bfloat16).train()
    loss = model(**inputs("llama", "right")).logits.float().pow(2).mean()
    loss.backward()
    assert torch.isfinite(loss)


def test_a_paged_cache_is_refused():
    q = torch.randn(1, 2, 3, 8)
    with pytest.raises(flashomp.Error, match="cache was given"):
        flashomp.transformers.attention(torch.nn.Module(), q, q, q, None, cache=object())


def test_models_that_compute_attention_by_themselves_are_refused():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=4)
    with pytest.raises(flashomp.Error, match="BloomForCausalLM computes attention by itself"):
        transformers.BloomForCausalLM._from_config(copy.deepcopy(config), attn_implementation="flashomp")
    transformers.BloomForCausalLM._from_config(config, attn_implementation="eager")


def test_other_names_are_as_before():
    from transformers.utils.generic import is_flash_attention_requested

    assert not is_flash_attention_requested(requested_attention_implementation="flashomp")
    assert is_flash_attention_requested(requested_attention_implementation="flash_attention_2")
    with pytest.raises(ValueError, match="not both"):
        is_flash_attention_requested(object(), "flashomp")

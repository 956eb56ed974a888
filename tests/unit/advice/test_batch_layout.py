from advisor.advice.batch_layout import BatchLayout, batch_norm_checks, loss_checks


def layout(micro, accumulation=1, replicas=1):
    return BatchLayout(micro_batch_size=micro, num_microbatches=accumulation, num_replicas=replicas)


def test_accumulation_becomes_replicas():
    assert layout(4, 8).global_batch_size == layout(4, 1, 8).global_batch_size == 32


def test_the_same_layout_needs_no_checks():
    assert loss_checks(layout(4, 8), new=layout(4, 8), is_language_model=True) == ()
    assert batch_norm_checks(layout(4, 8), new=layout(4, 1, 8)) == ()


def test_replicas_average_gradients():
    checks = loss_checks(layout(4, 8), new=layout(4, 1, 8), is_language_model=False)
    assert any("reduction='sum' multiply by the 8 replicas" in check for check in checks)
    assert any("set_epoch()" in check for check in checks)
    assert not any("tokens" in check for check in checks)


def test_language_models_normalise_by_tokens():
    checks = loss_checks(layout(32), new=layout(4, 8), is_language_model=True)
    assert any("all valid tokens of the step" in check for check in checks)
    assert any("divide by the 8 micro-batches once" in check for check in checks)


def test_batch_norm_follows_the_micro_batch():
    assert "GroupNorm below 16" in batch_norm_checks(layout(32), new=layout(8, 4))[0]
    assert "ghost batch normalisation with 32" in batch_norm_checks(layout(32), new=layout(64))[0]
    assert "keep 64 per device" in batch_norm_checks(layout(64), new=layout(32, 2))[0]

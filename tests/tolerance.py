"""How closely results must agree, in one place."""

# Law 1: how a prompt is cut into chunks, who shares the batch and how many threads run never change the logits.
# A share of the logit range; zero means bit for bit.
CHUNKING = 0.0

# Against Hugging Face transformers in float32, as a share of the logit range.  Rounding alone gives about 1e-6.
ORACLE = 1e-5

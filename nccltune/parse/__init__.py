"""Other people's text into records: NCCL logs, nccl-tests reports, topology matrices, Hugging Face configs. No measuring."""

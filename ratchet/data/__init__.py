"""Text as data: sources, documents, tokenizer, packed rows, the loader."""

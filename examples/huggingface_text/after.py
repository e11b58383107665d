"""A small BERT that tells which library a sentence of documentation comes from, with Hugging Face's Trainer."""

from pathlib import Path

import docstrings
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from calibrant.integrations.any_loop import judge
from calibrant.integrations.transformers import predictions_of

torch.manual_seed(0)
texts, labels = docstrings.load()
train, val, test = range(2000), range(2000, 2800), range(2800, len(texts))

# Made and built here; AutoTokenizer and AutoModelForSequenceClassification.from_pretrained(...) are used alike.
tokenizer = BertWordPieceTokenizer()
tokenizer.train_from_iterator([texts[row] for row in train], vocab_size=4000, show_progress=False)
tokenizer.enable_truncation(24)
tokenizer.enable_padding(length=24)
tokens = tokenizer.encode_batch(texts)


def rows_of(part):
    """Some of the sentences, as Trainer wants them."""
    names = {"input_ids": "ids", "attention_mask": "attention_mask"}
    return [{**{k: getattr(tokens[row], v) for k, v in names.items()}, "labels": labels[row]} for row in part]


sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
config = BertConfig(vocab_size=4000, max_position_embeddings=24, num_labels=len(docstrings.LIBRARIES), **sizes)
model = BertForSequenceClassification(config)
arguments = TrainingArguments(
    "trained",
    num_train_epochs=4,
    per_device_train_batch_size=50,
    per_device_eval_batch_size=400,
    learning_rate=2e-3,
    lr_scheduler_type="cosine",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=rows_of(train))
trainer.train()
tested = trainer.predict(rows_of(test))
accuracy = float((tested.predictions.argmax(axis=1) == tested.label_ids).mean())
print(f"test accuracy {accuracy:.1%}")
trainer.save_model("trained")
validation, test_predictions = predictions_of(trainer.predict(rows_of(val))), predictions_of(tested)
judgement = judge("judged", validation, test_predictions, target_accuracy=0.8)
Path("trained", "README.md").write_text(f"```\n{judgement}\n```\n")
print(judgement)

// The sections of job files: what is trained, on which data, and for how long.
#include "shardwise/config/field.h"

namespace shardwise::config {
namespace {

void add_model_fields(FieldList& list) {
  list.job_section("model", "The model: exactly one of `path` and `config`.");
  list.job_key("model.path", text("").or_null(),
               "Folder in Hugging Face's layout: config.json and safetensors.",
               SW_MEMBER(model.path));
  Field& config = list.job_key("model.config", object(),
                               "The model's shape in the keys of Hugging Face's config.json; its "
                               "weights start random.",
                               SW_MEMBER(model.config_json));
  config.store_job = [](JobSections& job, const Value& value) {
    job.model.config_json = value.is_null() ? "" : to_text(value);
  };
  list.job_key("model.load_weights", boolean(true),
               "Start from the weights in `model.path`; false: random ones in its shape.",
               SW_MEMBER(model.load_weights))
      .derived();
}

void add_corpus_fields(FieldList& list) {
  list.job_section("data", "The tokens to train on and to evaluate with.");
  list.job_key("data.files", words({}).required(),
               "Required. Text files (UTF-8, one document each) and token files; globs allowed.",
               SW_MEMBER(data.files));
  list.job_key("data.held_out", number(0).min(0).below(1),
               "Share of the corpus's end that is kept for evaluation.", SW_MEMBER(data.held_out));
  list.job_key("data.held_out_files", words({}), "Files for evaluation, instead of a share.",
               SW_MEMBER(data.held_out_files));
  list.job_key("data.tokenizer", text(""),
               "`bytes`, or the path of a tokenizer.json or of a folder with one.",
               SW_MEMBER(data.tokenizer));
  list.job_key("data.sequence_length", integer(0).required().min(2), "Required. Tokens a sample.",
               SW_MEMBER(data.sequence_length));
  list.job_key("data.separate_documents", boolean(false),
               "Tokens see their own document alone: positions begin anew with each, and its last "
               "token predicts nothing. false: documents run into each other.",
               SW_MEMBER(data.separate_documents));
  list.job_key("data.shuffle", boolean(true), "Take the samples in random order.",
               SW_MEMBER(data.shuffle));
}

void add_run_fields(FieldList& list) {
  list.job_section("training", "How long to train, and what becomes of the result.");
  list.job_key("training.steps", integer(0).required().min(1), "Required. Optimizer steps.",
               SW_MEMBER(training.steps));
  list.job_key("training.seed", integer(0).min(0),
               "Seed of weights, shuffling, dropout and sampling.", SW_MEMBER(training.seed));
  list.job_key("training.evaluate_every", integer(0).min(0),
               "Steps between evaluations on the held-out data; 0: at the end only.",
               SW_MEMBER(training.evaluate_every));
  list.job_key("training.evaluate_samples", integer(0).min(0),
               "Samples of one evaluation at most; 0: all.", SW_MEMBER(training.evaluate_samples));
  list.job_key("training.output", text(""), "Folder for log, report and weights.",
               SW_MEMBER(training.output));
  list.job_key("training.save_weights", boolean(true),
               "Write the weights in Hugging Face's layout to `<output>/model` at the end.",
               SW_MEMBER(training.save_weights));
  list.job_key("training.sample_prompt", text(""),
               "Text that the trained model continues at the end; empty: none.",
               SW_MEMBER(training.sample_prompt));
  list.job_key("training.sample_tokens", integer(0).min(1), "Tokens of that text.",
               SW_MEMBER(training.sample_tokens));
  list.job_key("training.sample_temperature", number(0).min(0),
               "Temperature of its sampling; 0: always the likeliest token.",
               SW_MEMBER(training.sample_temperature));
}

}  // namespace

void add_job_fields(FieldList& list) {
  add_model_fields(list);
  add_corpus_fields(list);
  add_run_fields(list);
}

}  // namespace shardwise::config

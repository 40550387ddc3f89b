#include "shardwise/data/corpus.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/file_list.h"
#include "shardwise/data/text_check.h"
#include "shardwise/data/token_source.h"
#include "shardwise/io/memory_map.h"
#include "shardwise/io/token_file.h"

namespace shardwise::data {
namespace {

// `samples` windows of a run of tokens, from window `first` on.
class WindowCorpus : public Corpus {
 public:
  struct Part {
    std::int64_t first = 0;
    std::int64_t samples = 0;
    std::int64_t length = 0;
    bool separates_documents = false;
  };

  WindowCorpus(std::shared_ptr<const TokenSource> source, Part part, std::int64_t vocabulary)
      : source_(std::move(source)), part_(part), vocabulary_(vocabulary) {}

  std::int64_t size() const override { return part_.samples; }
  std::int64_t length() const override { return part_.length; }
  std::int64_t vocabulary() const override { return vocabulary_; }

  void read(std::int64_t sample, std::span<std::int64_t> out) const override {
    SW_CHECK(sample >= 0 && sample < part_.samples, "sample ", sample, " of ", part_.samples);
    SW_CHECK_EQ(static_cast<std::int64_t>(out.size()), part_.length);
    source_->read((part_.first + sample) * part_.length, out);
  }

  bool separates_documents() const override { return part_.separates_documents; }

  std::vector<std::int64_t> document_begins(std::int64_t sample) const override {
    const std::int64_t begin = (part_.first + sample) * part_.length;
    std::vector<std::int64_t> begins = source_->document_begins(begin, begin + part_.length);
    for (std::int64_t& place : begins) {
      place -= begin;
    }
    if (begins.empty() || begins.front() != 0) {
      begins.insert(begins.begin(), 0);
    }
    return begins;
  }

 private:
  std::shared_ptr<const TokenSource> source_;
  Part part_;
  std::int64_t vocabulary_;
};

std::shared_ptr<const TokenSource> open_all(const std::vector<std::string>& files,
                                            const Tokenizer& tokenizer) {
  std::vector<std::shared_ptr<const TokenSource>> sources;
  sources.reserve(files.size());
  for (const std::string& file : files) {
    sources.push_back(open_source(file, tokenizer));
  }
  return join(std::move(sources), tokenizer.end_of_text());
}

// How many whole samples the files hold; at least one.
std::int64_t count_samples(const TokenSource& source, std::int64_t length, const std::string& key) {
  const std::int64_t samples = source.tokens() / length;
  SW_USER_CHECK(ConfigError, samples >= 1, key, ": the files hold ", source.tokens(),
                " tokens, fewer than the ", length,
                " of one sample; add text or make data.sequence_length smaller");
  return samples;
}

std::int64_t count_held_out(double share, std::int64_t samples) {
  if (share == 0) {
    return 0;
  }
  // The small summand keeps 0.29 of 100 samples at 29, which floating point makes 28.999.
  const auto held =
      static_cast<std::int64_t>(std::floor(share * static_cast<double>(samples) + 1e-6));
  SW_USER_CHECK(ConfigError, held >= 1, "data.held_out: ", share, " of ", samples,
                " samples is not one whole sample; it takes at least ",
                1.0 / static_cast<double>(samples), ", or more text, or data.held_out_files");
  SW_USER_CHECK(ConfigError, held < samples, "data.held_out: ", share, " of ", samples,
                samples == 1 ? " sample" : " samples",
                " leaves none to train on; make it smaller or add text");
  return held;
}

void check_options(const CorpusOptions& options) {
  SW_USER_CHECK(ConfigError, options.length >= 1, "data.sequence_length: a sample of ",
                options.length, " tokens cannot be; it takes 1 or more");
  SW_USER_CHECK(ConfigError, options.held_out >= 0 && options.held_out < 1,
                "data.held_out: ", options.held_out,
                " is no share; it takes a number from 0 up to, not including, 1");
  SW_USER_CHECK(ConfigError, options.held_out == 0 || options.held_out_files.empty(),
                "data.held_out and data.held_out_files: give one of the two, not both");
}

// Evaluating on what was trained on would say nothing.
void check_apart(const std::vector<std::string>& train, const std::vector<std::string>& held_out) {
  std::set<std::filesystem::path> known;
  for (const std::string& file : train) {
    known.insert(std::filesystem::weakly_canonical(file));
  }
  for (const std::string& file : held_out) {
    SW_USER_CHECK(ConfigError, !known.contains(std::filesystem::weakly_canonical(file)),
                  "data.held_out_files: '", file, "' is in data.files too; take it out of one");
  }
}

struct Files {
  std::vector<std::string> train, held_out;
};

Files find_files(const CorpusOptions& options) {
  check_options(options);
  Files files{.train = expand_files(options.files, "data.files"), .held_out = {}};
  if (!options.held_out_files.empty()) {
    files.held_out = expand_files(options.held_out_files, "data.held_out_files");
    check_apart(files.train, files.held_out);
  }
  return files;
}

}  // namespace

DocumentOffsets read_samples(const Corpus& corpus, std::span<const std::int64_t> samples,
                             std::span<std::int64_t> out) {
  const auto length = static_cast<std::size_t>(corpus.length());
  SW_CHECK_EQ(out.size(), samples.size() * length);
  SW_USER_CHECK(ConfigError, !corpus.separates_documents() || out.size() < std::size_t{1} << 31,
                "data.separate_documents: a micro-batch of ", out.size(),
                " tokens is more than places of documents can count to, 2147483647; make "
                "train_micro_batch_size_per_gpu or data.sequence_length smaller");
  DocumentOffsets documents;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    corpus.read(samples[row], out.subspan(row * length, length));
    if (corpus.separates_documents()) {
      for (const std::int64_t place : corpus.document_begins(samples[row])) {
        documents.offsets.push_back(static_cast<std::int32_t>(row * length + place));
      }
    }
  }
  if (corpus.separates_documents()) {
    documents.offsets.push_back(static_cast<std::int32_t>(out.size()));
  }
  for (std::size_t i = 1; i < documents.offsets.size(); ++i) {
    documents.longest =
        std::max<std::int64_t>(documents.longest, documents.offsets[i] - documents.offsets[i - 1]);
  }
  return documents;
}

CorpusOptions corpus_options(const config::JobData& data) {
  return {.files = data.files,
          .length = data.sequence_length,
          .held_out = data.held_out,
          .held_out_files = data.held_out_files,
          .separate_documents = data.separate_documents};
}

Split open_corpus(const CorpusOptions& options, const Tokenizer& tokenizer) {
  const auto [files, held_out_files] = find_files(options);
  const std::int64_t length = options.length;
  const std::int64_t vocabulary = tokenizer.vocabulary_size();
  const auto source = open_all(files, tokenizer);
  const std::int64_t samples = count_samples(*source, length, "data.files");
  const std::int64_t held = count_held_out(options.held_out, samples);
  const auto part = [&](std::shared_ptr<const TokenSource> from, std::int64_t first,
                        std::int64_t count) {
    return std::make_shared<WindowCorpus>(
        std::move(from), WindowCorpus::Part{first, count, length, options.separate_documents},
        vocabulary);
  };
  Split split;
  split.train = part(source, 0, samples - held);
  if (held > 0) {
    split.held_out = part(source, samples - held, held);
  } else if (!held_out_files.empty()) {
    const auto other = open_all(held_out_files, tokenizer);
    split.held_out = part(other, 0, count_samples(*other, length, "data.held_out_files"));
  }
  return split;
}

std::optional<Split> open_tokenized_corpus(const CorpusOptions& options,
                                           const Tokenizer& tokenizer) {
  auto [files, held_out_files] = find_files(options);
  files.insert(files.end(), held_out_files.begin(), held_out_files.end());
  bool all = true;
  for (const std::string& file : files) {
    if (tokenizer.takes_any_bytes() || io::TokenFile::has_magic(file)) {
      open_source(file, tokenizer);
    } else {
      const io::MemoryMap map(file);
      check_not_binary({reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()},
                       file);
      all = false;
    }
  }
  return all ? std::optional(open_corpus(options, tokenizer)) : std::nullopt;
}

}  // namespace shardwise::data

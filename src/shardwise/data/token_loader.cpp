#include "shardwise/data/token_loader.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <system_error>
#include <utility>

#include "shardwise/base/check.h"
#include "shardwise/data/permutation.h"

namespace shardwise::data {
namespace {

std::int64_t global_batch(const LoaderOptions& options) {
  return options.micro_batch * options.world_size;
}

void check_options(const Corpus& corpus, const LoaderOptions& options) {
  SW_USER_CHECK(UsageError, options.micro_batch >= 1, "loader: micro_batch is ",
                options.micro_batch, "; it takes 1 or more samples");
  SW_USER_CHECK(UsageError,
                options.world_size >= 1 && options.rank >= 0 && options.rank < options.world_size,
                "loader: rank ", options.rank, " of ", options.world_size,
                " ranks cannot be; ranks run from 0 to world_size - 1");
  SW_USER_CHECK(ConfigError, options.micro_batch <= corpus.size() / options.world_size,
                "data.files: the corpus has ", corpus.size(), " samples of ", corpus.length(),
                " tokens, but one micro-batch of all ranks takes more: ", options.micro_batch,
                " (train_micro_batch_size_per_gpu) x ", options.world_size,
                " (ranks); add text, or make the micro-batch, data.sequence_length or the number "
                "of ranks smaller");
}

// Takes "name=number" and a blank, where one follows, off the front of `text`.
template <typename Number>
bool take_number(std::string_view& text, std::string_view name, Number& number) {
  if (!text.starts_with(name) || !text.substr(name.size()).starts_with('=')) {
    return false;
  }
  text.remove_prefix(name.size() + 1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  const bool more = text.starts_with(' ');
  text.remove_prefix(more ? 1 : 0);
  return error == std::errc() && (more || text.empty());
}

}  // namespace

std::string to_string(const Cursor& cursor) {
  return concat("epoch=", cursor.epoch, " position=", cursor.position, " seed=", cursor.seed);
}

Cursor parse_cursor(const std::string& text) {
  Cursor cursor;
  std::string_view rest = text;
  const bool good = take_number(rest, "epoch", cursor.epoch) &&
                    take_number(rest, "position", cursor.position) &&
                    take_number(rest, "seed", cursor.seed) && rest.empty();
  SW_USER_CHECK(UsageError, good && to_string(cursor) == text, "loader: '", text,
                "' is no cursor; it reads \"epoch=1 position=4096 seed=7\"");
  return cursor;
}

TokenLoader::TokenLoader(std::shared_ptr<const Corpus> corpus, const LoaderOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  SW_CHECK(corpus_ != nullptr);
  check_options(*corpus_, options_);
  cursor_.seed = options_.seed;
}

std::int64_t TokenLoader::tokens_per_batch() const {
  return options_.micro_batch * corpus_->length();
}

DocumentOffsets TokenLoader::next(std::span<std::int64_t> out) {
  SW_USER_CHECK(UsageError, static_cast<std::int64_t>(out.size()) == tokens_per_batch(),
                "loader: next() fills ", tokens_per_batch(), " tokens, not ", out.size());
  Cursor cursor = cursor_;
  if (cursor.position + global_batch(options_) > corpus_->size()) {
    ++cursor.epoch;
    cursor.position = 0;
  }
  const Permutation order(corpus_->size(), cursor.seed, static_cast<std::uint64_t>(cursor.epoch));
  const std::int64_t first = cursor.position + options_.rank * options_.micro_batch;
  std::vector<std::int64_t> samples;
  for (std::int64_t place = first; place < first + options_.micro_batch; ++place) {
    samples.push_back(options_.shuffle ? order(place) : place);
  }
  DocumentOffsets documents = read_samples(*corpus_, samples, out);
  cursor.position += global_batch(options_);
  cursor_ = cursor;
  return documents;
}

void TokenLoader::seek(const Cursor& cursor) {
  SW_USER_CHECK(UsageError, cursor.epoch >= 0, "loader: epoch ", cursor.epoch,
                " of the cursor is below 0");
  SW_USER_CHECK(UsageError, cursor.position >= 0 && cursor.position <= corpus_->size(),
                "loader: position ", cursor.position, " of the cursor does not fit a corpus of ",
                corpus_->size(),
                " samples; it comes from another corpus or another data.sequence_length");
  cursor_ = cursor;
}

std::unique_ptr<TokenLoader> make_loader(const Split& split, double held_out,
                                         const LoaderOptions& options) {
  const std::int64_t left = split.train->size(), batch = global_batch(options);
  const std::int64_t samples = left + (held_out > 0 ? split.held_out->size() : 0);
  // Rounded down, so that the share that the message names works.
  const double most = static_cast<double>(samples - batch) / static_cast<double>(samples);
  SW_USER_CHECK(ConfigError, left >= batch || samples <= batch, "data.held_out: ", held_out, " of ",
                samples, " samples leaves ", left,
                " to train on, but one micro-batch of all ranks "
                "takes ",
                batch, " (", options.micro_batch, " x ", options.world_size,
                " ranks); make it at most ", std::floor(most * 1e4) / 1e4,
                ", add text, or give data.held_out_files");
  return std::make_unique<TokenLoader>(split.train, options);
}

}  // namespace shardwise::data

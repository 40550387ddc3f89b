#include "shardwise/config/batch.h"

#include <limits>

#include "shardwise/base/check.h"

namespace shardwise::config {
namespace {

constexpr const char* kTrain = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kSteps = "gradient_accumulation_steps";

// The product, or 0 when it does not fit into 64 bits.
std::int64_t product(std::int64_t a, std::int64_t b) {
  return b != 0 && a > std::numeric_limits<std::int64_t>::max() / b ? 0 : a * b;
}

class Solver {
 public:
  explicit Solver(const BatchRequest& request) : request_(request), given_(request.given) {
    world_ = concat("world size ", request.world_size);
    if (!request.world_origin.empty()) {
      world_ += concat(" (", request.world_origin, ")");
    }
  }

  BatchSolution run() {
    solution_.batch = given_;
    solution_.train_origin = request_.train_origin;
    solution_.micro_origin = request_.micro_origin;
    solution_.steps_origin = request_.steps_origin;
    choose();
    return solution_;
  }

 private:
  static std::string named(const char* name, std::int64_t value, const std::string& origin) {
    return concat(name, " ", value, " (", origin, ")");
  }
  std::string train() const {
    return named(kTrain, solution_.batch.train_batch_size, solution_.train_origin);
  }
  std::string micro() const {
    return named(kMicro, solution_.batch.train_micro_batch_size_per_gpu, solution_.micro_origin);
  }
  std::string steps() const {
    return named(kSteps, solution_.batch.gradient_accumulation_steps, solution_.steps_origin);
  }

  void choose() {
    const bool has_train = given_.train_batch_size > 0;
    const bool has_micro = given_.train_micro_batch_size_per_gpu > 0;
    const bool has_steps = given_.gradient_accumulation_steps > 0;
    if (!has_train && !has_micro) {
      nothing_to_solve(has_steps);
      return;
    }
    if (!has_steps && !(has_train && has_micro)) {
      solution_.batch.gradient_accumulation_steps = 1;
      solution_.steps_origin = "default";
    }
    if (!has_train) {
      multiply();
    } else if (!has_micro) {
      const bool mention = has_steps;
      divide(solution_.batch.gradient_accumulation_steps, mention ? steps() : "",
             mention ? kSteps : "", solution_.batch.train_micro_batch_size_per_gpu,
             solution_.micro_origin);
    } else if (!has_steps) {
      divide(given_.train_micro_batch_size_per_gpu, micro(), kMicro,
             solution_.batch.gradient_accumulation_steps, solution_.steps_origin);
    } else {
      compare();
    }
  }

  void nothing_to_solve(bool has_steps) {
    solution_.problem =
        has_steps ? concat("only ", steps(),
                           " is given, which does not say how many samples a step has; add ",
                           kTrain, " or ", kMicro)
                  : concat("no batch size is given; add ", kMicro,
                           " (samples of one pass of one rank) or ", kTrain,
                           " (samples of one step of all ranks, a multiple of ", world_, ")");
  }

  void multiply() {
    BatchConfig& batch = solution_.batch;
    const std::int64_t samples =
        product(batch.train_micro_batch_size_per_gpu, batch.gradient_accumulation_steps);
    batch.train_batch_size = product(samples, request_.world_size);
    solution_.train_origin = concat("derived from ", kMicro, ", ", kSteps, " and world size");
    if (batch.train_batch_size == 0) {
      too_large();
    }
  }

  void too_large() {
    solution_.problem = concat(micro(), " x ", steps(), " x ", world_,
                               " is more than 64 bits hold; write smaller numbers");
  }

  // result = train / (other * world). `other_text` and `other_name` are "" when the other factor is
  // only the default.
  void divide(std::int64_t other, const std::string& other_text, const std::string& other_name,
              std::int64_t& result, std::string& result_origin) {
    result_origin = concat("derived from ", kTrain, other_name.empty() ? "" : ", " + other_name,
                           " and world size");
    const std::int64_t unit = product(other, request_.world_size);
    const std::int64_t samples = given_.train_batch_size;
    if (unit > 0 && samples % unit == 0) {
      result = samples / unit;
      return;
    }
    const std::string factors = other_text.empty() ? world_ : concat(other_text, " x ", world_);
    if (unit == 0) {
      solution_.problem = concat(factors, " is more than 64 bits hold; write smaller numbers");
      return;
    }
    const std::string total = other_text.empty() ? "" : concat(" = ", unit);
    const std::int64_t below = samples / unit * unit;
    const bool has_above = below <= std::numeric_limits<std::int64_t>::max() - unit;
    const std::string above = has_above ? std::to_string(below + unit) : "";
    const std::string lower = below > 0 ? std::to_string(below) : "";
    const char* between = !lower.empty() && has_above ? " or " : "";
    solution_.problem = concat(train(), " is not a multiple of ", factors, total, "; write ", lower,
                               between, above);
  }

  void compare() {
    const BatchConfig& b = solution_.batch;
    const std::int64_t samples =
        product(b.train_micro_batch_size_per_gpu, b.gradient_accumulation_steps);
    const std::int64_t total = product(samples, request_.world_size);
    if (total == 0) {
      too_large();
      return;
    }
    if (total == b.train_batch_size) {
      return;
    }
    solution_.problem =
        concat(train(), " does not fit ", micro(), " x ", steps(), " x ", world_, " = ", total,
               "; write ", kTrain, " ", total, " or leave one of the three out");
  }

  const BatchRequest& request_;
  const BatchConfig& given_;
  BatchSolution solution_;
  std::string world_;
};

}  // namespace

BatchSolution solve_batch(const BatchRequest& request) { return Solver(request).run(); }

}  // namespace shardwise::config

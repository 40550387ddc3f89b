// Runs cases of the parity table through the C++ front: `parity_native CASES.json`.
//
// CASES.json is a list of {"model": folder, "data": safetensors with step0, step1, ... [samples,
// length] int64, "config": the engine's configuration, "ranks", "accumulation", "steps",
// "output": safetensors to write}. The ranks are threads of this process on the CPU; started by a
// launcher, this process is one rank of all cases, on a GPU where there is one. The output holds
// "losses", "norms", "applied" [steps], "traffic" [collectives] in bytes until the last step (all
// fp64), "gradient.<name>" of the last step before the update, "weight.<name>" and "master.<name>"
// after it, fp32.
#include <ATen/ATen.h>

#include <cstdio>
#include <mutex>

#include "shardwise/base/check.h"
#include "shardwise/comm/thread_transport.h"
#include "shardwise/io/safetensors.h"
#include "shardwise/train/layered_engine.h"

namespace shardwise {
namespace {

struct Case {
  std::string model, data, output;
  std::string config;
  int ranks = 1;
  std::int64_t accumulation = 1, steps = 1;
};

// What the test compares, by name.
using Record = std::map<std::string, at::Tensor>;

void write(const Record& record, const std::string& path) {
  io::TensorTable table;
  for (const auto& [name, tensor] : record) {
    table[name] = {
        tensor.scalar_type() == at::kDouble ? io::TensorType::kF64 : io::TensorType::kF32,
        tensor.sizes().vec(),
        {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
  }
  io::write_safetensors(path, table, {});
}

at::Tensor samples(const io::Safetensors& data, std::int64_t step) {
  const io::TensorData& entry = data.at("step" + std::to_string(step));
  return at::from_blob(const_cast<std::byte*>(entry.bytes.data()), entry.sizes, at::kLong).clone();
}

// `kind`: "gradient" or "master".
void add_whole(const char* kind, train::LayeredEngine& engine, Record& record) {
  const auto& parameters = engine.core().registry().parameters();
  for (int i = 0; i < static_cast<int>(parameters.size()); ++i) {
    record[concat(kind, ".", parameters[i].parameter().name)] =
        engine.core().tensors().full(i, kind).to(at::kCPU, at::kFloat).contiguous();
  }
}

at::Tensor traffic(train::LayeredEngine& engine) {
  at::Tensor bytes = at::zeros({comm::kCollectiveCount}, at::kDouble);
  for (int i = 0; i < comm::kCollectiveCount; ++i) {
    bytes[i] = engine.core().traffic(static_cast<comm::Collective>(i)).bytes;
  }
  return bytes;
}

// One rank's part; `record` is filled on the first one.
void train_rank(const Case& work, const train::Rank& rank, Record& record) {
  const auto config = config::load_text(work.config, {.world_size = work.ranks});
  train::LayeredEngine engine(models::load_model(work.model), config, rank);
  const auto data = io::Safetensors::open(work.data);
  const auto here = at::TensorOptions(rank.device);
  at::Tensor losses = at::zeros({work.steps}, at::kDouble);
  at::Tensor norms = losses.clone();
  at::Tensor applied = losses.clone();
  for (std::int64_t step = 0; step < work.steps; ++step) {
    const auto micro_batches = samples(data, step).chunk(work.ranks * work.accumulation);
    at::Tensor sum = at::zeros({1}, here);
    for (std::int64_t index = 0; index < work.accumulation; ++index) {
      const at::Tensor loss = engine.loss(micro_batches[index * work.ranks + rank.rank]);
      engine.backward(loss);
      sum += loss.detach();
      if (step + 1 == work.steps && index + 1 == work.accumulation) {
        record["traffic"] = traffic(engine);  // reading gradients adds to it
        add_whole("gradient", engine, record);
      }
      engine.step();
    }
    engine.sum_over_ranks(sum);
    losses[step] = sum.item<double>() / static_cast<double>(work.ranks * work.accumulation);
    norms[step] = engine.last_result()->norm;
    applied[step] = engine.last_result()->applied != 0 ? 1.0 : 0.0;
  }
  add_whole("master", engine, record);
  for (const models::NamedParameter& weight : engine.weights()) {
    record["weight." + weight.name] = weight.tensor.to(at::kFloat).contiguous();
  }
  engine.wait_for_ranks();
  record["losses"] = losses;
  record["norms"] = norms;
  record["applied"] = applied;
}

void run_as_threads(const Case& work) {
  std::vector<Record> records(work.ranks);
  comm::run_ranks(work.ranks, [&](const comm::ShardChannels& channels) {
    const int rank = channels.gather->rank();
    train_rank(work, {rank, work.ranks, at::kCPU, channels}, records[rank]);
  });
  for (const auto& [name, tensor] : records[0]) {
    for (const Record& other : records) {
      SW_CHECK(name.starts_with("weight.") || other.at(name).equal(tensor), "the ranks differ in ",
               name);
    }
  }
  write(records[0], work.output);
}

void run_as_one_rank(const std::vector<Case>& cases, const config::LaunchEnvironment& environment) {
  const auto first = config::load_text(cases.at(0).config, {.world_size = environment.world_size});
  const train::Rank rank = train::join_job(environment, config::read_settings(), first.config());
  for (const Case& work : cases) {
    Record record;
    train_rank(work, rank, record);
    if (rank.rank == 0) write(record, work.output);
  }
}

std::vector<Case> read_cases(const char* path) {
  std::vector<Case> cases;
  for (const io::JsonView& item : io::JsonView::read(path).items()) {
    cases.push_back({.model = item.at("model").string(),
                     .data = item.at("data").string(),
                     .output = item.at("output").string(),
                     .config = item.at("config").json().dump(),
                     .ranks = static_cast<int>(item.at("ranks").integer(1, 64)),
                     .accumulation = item.at("accumulation").integer(1, 64),
                     .steps = item.at("steps").integer(1, 1000)});
  }
  return cases;
}

}  // namespace
}  // namespace shardwise

int main(int, char** argv) {
  try {
    const auto cases = shardwise::read_cases(argv[1]);
    const auto environment = shardwise::config::read_launch_environment();
    if (environment.present) {
      shardwise::run_as_one_rank(cases, environment);
      return 0;
    }
    for (const auto& work : cases) shardwise::run_as_threads(work);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

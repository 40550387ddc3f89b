#include "shardwise/zero/accumulation_window.h"

#include <ATen/ATen.h>

#include "shardwise/base/check.h"

namespace shardwise::zero {

void AccumulationWindow::resize(std::int64_t size) {
  if (size == options_.size) {
    return;
  }
  SW_USER_CHECK(UsageError, held_ == 0 && !had_backward_,
                "the batch size can change only between steps, not inside an accumulation window (",
                held_, " of ", options_.size, " micro-batches are done)");
  options_.size = size;
}

double AccumulationWindow::begin_backward(LossScaledBy scaled_by) {
  had_backward_ = true;
  if (scaled_by == LossScaledBy::kOtherEngine) {
    foreign_scale_ = foreign_scale_ || options_.loss_scaling;
    return 1.0;
  }
  if (scaled_by == LossScaledBy::kUser) {
    SW_USER_CHECK(UsageError, !options_.token_weighted,
                  "loss.backward() does not say how many tokens the loss is the mean of, which "
                  "shardwise.token_weighted_loss needs: call engine.backward(loss, tokens=count)");
    SW_USER_CHECK(UsageError, !options_.loss_scaling || scaled_by_hand_,
                  "loss.backward() with fp16 lacks the loss scale, without which small gradients "
                  "become zero: call engine.backward(loss), or engine.scale(loss).backward()");
    return 1.0 / static_cast<double>(options_.size);
  }
  return 1.0;
}

void AccumulationWindow::add_weight(const at::Tensor& weight) {
  const at::Tensor exact = weight.detach().to(at::kDouble).reshape({});
  if (micro_weight_.defined()) {
    SW_USER_CHECK(UsageError, at::equal(micro_weight_, exact), "a loss over ",
                  micro_weight_.item<double>(), " tokens and one over ", exact.item<double>(),
                  " came in one micro-batch, which counts by one number of them: call step() "
                  "between micro-batches, or pass one tokens= for all losses of this one");
    return;
  }
  micro_weight_ = exact;
  weight_ = weight_.defined() ? weight_ + exact : exact.clone();
}

void AccumulationWindow::end_micro_batch() {
  ++held_;
  ++with_gradients_;
  ++micro_steps_;
  end_losses();
}

void AccumulationWindow::close(bool with_micro_batch) {
  if (with_micro_batch) {
    end_micro_batch();
  }
  held_ = 0;
  with_gradients_ = 0;
  weight_.reset();
  foreign_scale_ = false;
}

void AccumulationWindow::drop() {
  micro_steps_ -= held_;
  held_ = 0;
  forget_gradients();
}

void AccumulationWindow::forget_gradients() {
  with_gradients_ = 0;
  weight_.reset();
  end_losses();
  foreign_scale_ = false;
}

void AccumulationWindow::end_losses() {
  had_backward_ = false;
  scaled_by_hand_ = false;
  micro_weight_.reset();
}

double AccumulationWindow::partial_factor(std::int64_t of_all, int ranks) const {
  return options_.token_weighted
             ? 1.0
             : static_cast<double>(options_.size) * ranks / static_cast<double>(of_all);
}

}  // namespace shardwise::zero

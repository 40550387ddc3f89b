#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "shardwise/base/check.h"
#include "shardwise/bindings/registrations.h"
#include "shardwise/data/corpus.h"
#include "shardwise/data/token_loader.h"
#include "shardwise/data/tokenizer.h"

namespace py = pybind11;

namespace shardwise::bindings {
namespace {

// pybind11 holds objects as not const; the class registers const functions only.
using TokenizerPointer = std::shared_ptr<data::Tokenizer>;
using CorpusPointer = std::shared_ptr<data::Corpus>;

// str as UTF-8, or bytes.
std::vector<std::int64_t> encode(const data::Tokenizer& tokenizer, const py::object& text) {
  const auto bytes = py::isinstance<py::bytes>(text)
                         ? py::reinterpret_borrow<py::bytes>(text)
                         : py::reinterpret_steal<py::bytes>(PyUnicode_AsUTF8String(text.ptr()));
  if (!bytes) throw py::error_already_set();
  const std::string_view view = bytes;
  const py::gil_scoped_release unlocked;
  return tokenizer.encode(view);
}

py::tuple open_corpus(const data::CorpusOptions& options, const TokenizerPointer& tokenizer) {
  data::Split split;
  {
    const py::gil_scoped_release unlocked;
    split = data::open_corpus(options, *tokenizer);
  }
  const auto cast = [](const std::shared_ptr<const data::Corpus>& corpus) {
    return std::const_pointer_cast<data::Corpus>(corpus);
  };
  return py::make_tuple(cast(split.train), cast(split.held_out));
}

std::span<std::int64_t> values(const at::Tensor& tensor) {
  return {tensor.data_ptr<std::int64_t>(), static_cast<std::size_t>(tensor.numel())};
}

at::Tensor read_sample(const data::Corpus& corpus, std::int64_t sample) {
  if (sample < 0 || sample >= corpus.size()) throw py::index_error();
  const at::Tensor tensor = at::empty({corpus.length()}, at::kLong);
  corpus.read(sample, values(tensor));
  return tensor;
}

void register_tokenizer(py::module_& module) {
  py::class_<data::Tokenizer, TokenizerPointer>(
      module, "Tokenizer", "\"bytes\", a tokenizer.json with a BPE model, or a folder with one.")
      .def(py::init([](const std::string& name) {
             const py::gil_scoped_release unlocked;
             return std::const_pointer_cast<data::Tokenizer>(data::make_tokenizer(name));
           }),
           py::arg("name"))
      .def("encode", &encode, py::arg("text"),
           "The ids of a str, or of bytes in UTF-8; no special token is added.")
      .def(
          "decode",
          [](const data::Tokenizer& self, const std::vector<std::int64_t>& ids, bool skip_special) {
            const std::string text = self.decode(ids, skip_special);
            return py::reinterpret_steal<py::str>(
                PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
          },
          py::arg("ids"), py::arg("skip_special") = false)
      .def(
          "decode_bytes",
          [](const data::Tokenizer& self, const std::vector<std::int64_t>& ids, bool skip_special) {
            return py::bytes(self.decode(ids, skip_special));
          },
          py::arg("ids"), py::arg("skip_special") = false)
      .def_property_readonly("vocabulary_size", &data::Tokenizer::vocabulary_size)
      .def_property_readonly("end_of_text", &data::Tokenizer::end_of_text)
      .def_property_readonly("fingerprint", &data::Tokenizer::fingerprint);
}

void register_corpus(py::module_& module) {
  py::class_<data::Corpus, CorpusPointer>(module, "Corpus", "Samples of equal length.")
      .def("__len__", &data::Corpus::size)
      .def("__repr__",
           [](const data::Corpus& self) {
             return concat("<Corpus: ", self.size(), " samples of ", self.length(), " tokens>");
           })
      .def_property_readonly("length", &data::Corpus::length)
      .def_property_readonly("vocabulary", &data::Corpus::vocabulary)
      .def_property_readonly("separates_documents", &data::Corpus::separates_documents)
      .def("__getitem__", &read_sample, "The token ids of a sample, int64 [length].");
  module.def(
      "open_corpus",
      [](const std::vector<std::string>& files, const TokenizerPointer& tokenizer,
         std::int64_t length, double held_out, const std::vector<std::string>& held_out_files,
         bool separate_documents) {
        return open_corpus({files, length, held_out, held_out_files, separate_documents},
                           tokenizer);
      },
      py::arg("files"), py::arg("tokenizer"), py::arg("length"), py::arg("held_out") = 0.0,
      py::arg("held_out_files") = std::vector<std::string>(), py::arg("separate_documents") = false,
      "The corpus to train on and the one held out, which may be None.");
}

void register_loader(py::module_& module) {
  py::class_<data::TokenLoader>(module, "TokenLoader")
      .def(py::init([](const CorpusPointer& corpus, std::int64_t micro_batch, int rank,
                       int world_size, std::uint64_t seed, bool shuffle) {
             return data::TokenLoader(corpus, {micro_batch, rank, world_size, seed, shuffle});
           }),
           py::arg("corpus"), py::arg("micro_batch"), py::arg("rank"), py::arg("world_size"),
           py::arg("seed"), py::arg("shuffle"))
      .def(
          "next",
          [](data::TokenLoader& self, std::int64_t micro_batch) {
            const at::Tensor tensor =
                at::empty({micro_batch, self.tokens_per_batch() / micro_batch}, at::kLong);
            const data::DocumentOffsets documents = self.next(values(tensor));
            return py::make_tuple(tensor, at::tensor(documents.offsets, at::kInt),
                                  documents.longest);
          },
          py::arg("micro_batch"),
          "Ids [micro_batch, length], int64; offsets of documents in them, int32, empty unless the "
          "corpus separates documents; and the tokens of the longest.")
      .def_property_readonly("cursor",
                             [](const data::TokenLoader& self) { return to_string(self.cursor()); })
      .def(
          "seek",
          [](data::TokenLoader& self, const std::string& cursor) {
            self.seek(data::parse_cursor(cursor));
          },
          py::arg("cursor"));
}

}  // namespace

void register_data(py::module_& module) {
  register_tokenizer(module);
  register_corpus(module);
  register_loader(module);
}

}  // namespace shardwise::bindings

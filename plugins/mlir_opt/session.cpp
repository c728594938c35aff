#include "session.hpp"

#include "mlir/IR/Diagnostics.h"
#include "llvm/Support/FileSystem.h"

#include <map>
#include <mutex>
#include <set>

using namespace mlir;

namespace kernelcast {
namespace {

/// A model file as it was found: a model, or the sentence that says why there is none.
struct File {
  std::unique_ptr<Model> model;
  std::string problem;
};

/// The file of a kind's model at a path, read when it is first asked for; it stays as long as the process.
const File &fileAt(const std::string &path, const std::string &kind) {
  static std::mutex mutex;
  static std::map<std::string, File> files;
  std::lock_guard<std::mutex> lock(mutex);
  auto [place, isNew] = files.try_emplace(path);
  if (isNew)
    place->second.model = Model::load(path, place->second.problem, kind);
  return place->second;
}

bool firstTime(const std::string &sentence) {
  static std::mutex mutex;
  static std::set<std::string> told;
  std::lock_guard<std::mutex> lock(mutex);
  return told.insert(sentence).second;
}

/// The name in the catalogue of a device given by name or alias, case ignored; what no device there is called stays as it is.
std::string catalogueName(const std::string &device) {
  static const std::map<std::string, std::string> names = {
#include "device_aliases.inc"
  };
  auto place = names.find(StringRef(device).lower());
  return place == names.end() ? device : place->second;
}

} // namespace

Session::Session(Operation *function, StringRef pass, std::string directory, std::string device, bool strict)
    : function_(function), pass_(pass), directory_(std::move(directory)), asked_(std::move(device)),
      device_(catalogueName(asked_)), strict_(strict) {}

const Model *Session::find(const std::string &kind) {
  if (directory_.empty() || device_.empty()) {
    say("it needs the options model=DIR, the folder of model files, and device=NAME");
    return nullptr;
  }
  if (!llvm::sys::fs::is_directory(directory_)) {
    say("there is no folder of model files " + directory_);
    return nullptr;
  }
  const File &file = fileAt(directory_ + "/" + kind + ".kcm", kind);
  if (!file.model) {
    say(file.problem);
    return nullptr;
  }
  std::vector<std::string> devices = file.model->devices();
  if (std::find(devices.begin(), devices.end(), device_) == devices.end()) {
    say("the model of " + kind + " does not know the device '" + asked_ + "'; it knows: " + detail::listed(devices));
    return nullptr;
  }
  return file.model.get();
}

void Session::say(const std::string &sentence) {
  said_ = true;
  if (strict_)
    function_->emitError(pass_ + ": " + sentence);
  else if (firstTime(pass_ + sentence))
    function_->emitWarning(pass_ + ": " + sentence + "; the code is left as it is");
}

} // namespace kernelcast

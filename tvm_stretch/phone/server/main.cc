// tvm_stretch_rpc: the phone's side of ts.connect(), without Python.
//
//   tvm_stretch_rpc --tracker 192.0.2.7:9190 --key pixel-8
//
// It registers with TVM's tracker and serves one client after the other, each in a separate
// process. README.md in this folder says how to install it on a phone, and how it was tested.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <list>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "options.h"
#include "session.h"
#include "tracker.h"
#include "wire.h"

namespace tvm_stretch::server {
namespace {

constexpr std::chrono::seconds kPatience{2};  // for a new connection
constexpr size_t kMostGuests = 64;            // with an incomplete greeting
constexpr size_t kMostAtOnce = 16;            // accepted before others are served again
// Follows the key of a session, with the number of the run to cancel. An extension of TVM's
// protocol.
constexpr const char* kCancel = " -cancel=";
constexpr const char* kAnyCancel = " -cancel";  // older clients have no numbers
constexpr const char* kDigits = "0123456789";
constexpr size_t kMostDigits = 18;  // of a number
constexpr int kBeat = 20;           // ms between two checks of the session

volatile std::sig_atomic_t is_over = 0;
void End(int) { is_over = 1; }

// A new connection, until it becomes the client or is closed.
struct Guest {
  Talk talk;
  std::chrono::steady_clock::time_point until;
  bool has_greeted = false;
};

class Server {
 public:
  Server(Options options, Handle listener)
      : options_(std::move(options)), listener_(std::move(listener)) {
    if (!options_.tracker) return;
    tracker_ = std::make_unique<Tracker>(*options_.tracker, options_.key, PortOf(listener_),
                                         options_.advertised);
  }

  // No step blocks, so neither guests nor the tracker can delay others.
  void Run() {
    while (is_over == 0) {
      if (session_ != nullptr && session_->IsOver()) session_ = nullptr;
      if (tracker_ != nullptr && session_ == nullptr) KeepOffer();
      Listen();
      for (auto guest = guests_.begin(); guest != guests_.end();) {
        guest = HasGone(&*guest) ? guests_.erase(guest) : std::next(guest);
      }
      Admit();
    }
  }

 private:
  void KeepOffer() {
    const bool was_there = tracker_->is_there();
    tracker_->Step();
    if (tracker_->is_there() == was_there) return;
    std::fprintf(stderr, was_there ? "no tracker for %s\n" : "offered as %s\n",
                 options_.key.c_str());
  }

  // Waits for data, or for the next beat.
  void Listen() const {
    std::vector<pollfd> waiting{{listener_.get(), POLLIN, 0}};
    if (tracker_ != nullptr && session_ == nullptr) {
      waiting.push_back({tracker_->socket(), POLLIN, 0});
    }
    for (const Guest& guest : guests_) waiting.push_back({guest.talk.socket(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), kBeat);
  }

  // With too many silent guests, the oldest is dropped, as it had the most time.
  void Admit() {
    for (size_t i = 0; i < kMostAtOnce; ++i) {
      Handle client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client.is_open()) {
        if ((errno == EMFILE || errno == ENFILE) && !guests_.empty()) guests_.pop_front();
        return;
      }
      if (guests_.size() == kMostGuests) guests_.pop_front();
      guests_.push_back({Talk(std::move(client)), std::chrono::steady_clock::now() + kPatience});
    }
  }

  // Whether a guest is done, because of its message or its silence.
  bool HasGone(Guest* guest) {
    Talk& talk = guest->talk;
    if (!guest->has_greeted) {
      const auto magic = talk.TakeNumber();
      if (magic && *magic != kRpcMagic) return true;
      guest->has_greeted = magic.has_value();
    }
    if (guest->has_greeted) {
      if (const auto said = talk.TakeText(kLongestGreeting)) return Greet(&talk, *said), true;
    }
    return talk.is_over() || std::chrono::steady_clock::now() > guest->until;
  }

  // Refuses a client that the tracker did not send, or that does not know the secret.
  void Greet(Talk* talk, const std::string& said) {
    if (session_ != nullptr) return CancelFor(talk, said);
    std::istringstream words(said);
    std::string first;
    words >> first;
    const std::string key = tracker_ == nullptr ? options_.key : tracker_->matchkey();
    const bool is_late = said.find(kAnyCancel) != std::string::npos;
    if (key.empty() || is_late || !SameText(first, "client:" + key)) {
      return talk->SendNumber(kMismatch);
    }
    if (tracker_ != nullptr) tracker_->Taken();  // a match key is valid for one attempt
    double seconds = options_.session_limit;
    if (!Agrees(&words, key, &seconds)) return talk->SendNumber(kMismatch);
    talk->SendNumber(kWelcome);
    talk->SendText("server:" + options_.key);
    if (talk->is_over()) return;
    session_key_ = key;
    session_ = std::make_unique<Session>(talk->Release(), seconds, options_, [this] { Leave(); });
  }

  // During a session, its client may cancel one of its runs.
  void CancelFor(Talk* talk, const std::string& said) const {
    const size_t digits = said.size() - std::min(said.size(), said.find_last_not_of(kDigits) + 1);
    const std::string number = said.substr(said.size() - digits);
    const bool is_its_client = digits > 0 && digits <= kMostDigits &&
                               SameText(said, "client:" + session_key_ + kCancel + number);
    if (is_its_client) session_->CancelRun(std::stoll(number));
    talk->SendNumber(is_its_client ? kWelcome : kBusy);
  }

  // In a session's process: closes connections of others.
  void Leave() {
    listener_ = Handle();
    guests_.clear();
    tracker_ = nullptr;
  }

  // "-timeout=60 -proof=0a1b..", after the key: the proof is required if we have a secret. A client
  // may shorten its session, but not exceed our limit.
  bool Agrees(std::istringstream* words, const std::string& key, double* seconds) const {
    std::string word, proof;
    while (*words >> word) {
      if (word.rfind("-proof=", 0) == 0) proof = word.substr(7);
      if (word.rfind("-timeout=", 0) != 0) continue;
      const double asked = std::strtod(word.c_str() + 9, nullptr);
      if (asked > 0 && (*seconds <= 0 || asked < *seconds)) *seconds = asked;
    }
    return options_.secret.empty() || SameText(proof, Proof(options_.secret, key));
  }

  Options options_;
  Handle listener_;
  std::unique_ptr<Tracker> tracker_;
  std::unique_ptr<Session> session_;
  std::string session_key_;  // match key of the session
  std::list<Guest> guests_;  // the oldest first
};

// Makes paths absolute, as each session has another working folder, and makes the store.
bool PreparePlaces(Options* options) {
  namespace fs = std::filesystem;
  std::error_code fault;
  const char* temporary = std::getenv("TMPDIR");
  if (temporary != nullptr && *temporary != 0) {
    setenv("TMPDIR", fs::absolute(temporary, fault).c_str(), 1);
  }
  if (options->store.empty()) return true;
  const fs::path store = fs::absolute(options->store, fault);
  if (!fault) fs::create_directories(store, fault);
  options->store = store.string();
  if (!fault && access(store.c_str(), R_OK | W_OK | X_OK) == 0 && fs::is_directory(store, fault)) {
    return true;
  }
  std::fprintf(stderr, "expected a folder that we may write to for --store, got '%s': %s\n",
               store.c_str(), fault ? fault.message().c_str() : std::strerror(errno));
  return false;
}

int Main(int count, char** words) {
  if (count == 2 && std::string(words[1]) == "--help") return std::fputs(kUsage, stdout), 0;
  std::optional<Options> options = ParseOptions(count, words);
  if (!options || !PreparePlaces(&*options) || !LoadLibraries(options->libraries)) return 2;
  Handle listener = Listen(options->listen);
  if (!listener.is_open()) {
    std::fprintf(stderr,
                 "expected a free address of this device for --host and --port, got %s:%d\n",
                 options->listen.host.c_str(), options->listen.port);
    return 2;
  }
  struct sigaction ending{};
  ending.sa_handler = End;
  for (int number : {SIGINT, SIGTERM, SIGHUP}) sigaction(number, &ending, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::fprintf(stderr, "listening on %s:%d\n", options->listen.host.c_str(), PortOf(listener));
  Server(std::move(*options), std::move(listener)).Run();
  return 0;
}

}  // namespace
}  // namespace tvm_stretch::server

int main(int count, char** words) { return tvm_stretch::server::Main(count, words); }

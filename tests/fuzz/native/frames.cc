// What strangers and a tracker say to a phone's server before a session begins. The first byte
// chooses the listener; the rest arrives in two pieces.
#include <fcntl.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#define main ServerMain
#define private public  // the steps of the server's loop, which waits for sockets otherwise
#include "tvm_stretch/phone/server/main.cc"
#undef private
#undef main

namespace tvm_stretch::server {

// A session that begins is none here: it would be another process.
Session::Session(Handle client, double seconds, const Options&, const std::function<void()>&)
    : client_(std::move(client)), seconds_(seconds) {}
Session::~Session() = default;
bool Session::IsOver() { return false; }
void Session::CancelRun(int64_t) const {}
bool LoadLibraries(const std::vector<std::string>&) { return true; }

namespace {

struct Ends {
  Handle ours, theirs;
};

Ends Connected() {
  int both[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) != 0) std::abort();
  return {Handle(both[0]), Handle(both[1])};
}

void Say(const Handle& to, const uint8_t* data, size_t bytes) {
  if (bytes > 0 && send(to.get(), data, bytes, MSG_NOSIGNAL) < 0) return;
}

// The greeting of a stranger, while there is no session and while there is one.
void Stranger(const uint8_t* data, size_t bytes, bool has_session, bool has_secret) {
  Options options;
  options.key = "pixel";
  if (has_secret) options.secret = "secret";
  Server server(options, Handle());
  if (has_session) {
    server.session_key_ = "pixel";
    server.session_ = std::make_unique<Session>(Handle(), 0, options, [] {});
  }
  Ends ends = Connected();
  Guest guest{Talk(std::move(ends.ours)), std::chrono::steady_clock::time_point::max()};
  bool is_gone = false;
  for (const auto& [start, count] :
       {std::pair{size_t{0}, bytes / 2}, {bytes / 2, bytes - bytes / 2}}) {
    Say(ends.theirs, data + start, count);
    if (!is_gone) is_gone = server.HasGone(&guest);
  }
}

// Answers of a tracker.
void Answers(const uint8_t* data, size_t bytes) {
  Tracker tracker({"127.0.0.1", 1}, "pixel", 9090, "");
  Ends ends = Connected();
  tracker.Greet(std::move(ends.ours));
  for (size_t start = 0; start < bytes; start += 16) {
    Say(ends.theirs, data + start, std::min<size_t>(16, bytes - start));
    if (tracker.state_ == Tracker::State::kAway) return;
    tracker.Step();
    tracker.next_ = {};
  }
}

}  // namespace
}  // namespace tvm_stretch::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace tvm_stretch::server;
  if (bytes == 0 || bytes > 20'000) return 0;
  const uint8_t choice = *data % 6;
  if (choice < 4) Stranger(data + 1, bytes - 1, choice & 1, choice & 2);
  if (choice == 4) Answers(data + 1, bytes - 1);
  if (choice == 5) ParseAddress(std::string(reinterpret_cast<const char*>(data) + 1, bytes - 1));
  return 0;
}

// Proves knowledge of a secret without sending it: HMAC-SHA256 of a key that is used once.
#pragma once

#include <string>

namespace tvm_stretch::server {

// In hexadecimal digits.
std::string Sha256(const std::string& text);
std::string Proof(const std::string& secret, const std::string& text);

// Compares two texts in constant time.
bool SameText(const std::string& one, const std::string& other);

// `count` random hexadecimal digits; "" if the system has no random numbers.
std::string RandomDigits(size_t count);

}  // namespace tvm_stretch::server

// The part of the played device that PyTorch wants in C++: where memory comes from, which device and
// stream are current in a thread, and the ops that move no data. Everything else is in Python, which
// is called through the table of functions below. It is loaded into the process with ctypes.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/unfold_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <mutex>
#include <vector>

namespace {

constexpr auto kPlayed = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

// Functions of Python. All of them may be called from any thread; ctypes takes the interpreter's lock.
struct Host {
  void* (*allocate)(size_t nbytes, int device, int64_t stream);
  void* (*allocate_pinned)(size_t nbytes);
  int (*is_pinned)(const void* address);
  int64_t (*record)(int64_t event, int device, int64_t stream);
  void (*block)(int64_t event, int device, int64_t stream);
  int (*query)(int64_t event);
  void (*synchronize)(int64_t event, int device);
};

Host host{};

thread_local int current_device = 0;
thread_local int64_t current_stream[kDevices] = {0, 0};

// What was given back, for Python to ask for before it gives anything to a device or away. It is not
// called here: memory is also given back while an exception of Python's is on its way.
std::mutex returning;
std::vector<int64_t> returned;

void release(void* address) {
  const std::lock_guard<std::mutex> lock(returning);
  returned.push_back(reinterpret_cast<int64_t>(address));
}

// Allocators are asked without a device: it is the current one, as with CUDA.
struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::Device device(kPlayed, static_cast<c10::DeviceIndex>(current_device));
    if (nbytes == 0) return {nullptr, nullptr, &release, device};
    void* address = host.allocate(nbytes, current_device, current_stream[current_device]);
    TORCH_CHECK_WITH(OutOfMemoryError, address != nullptr, "played out of memory: tried to allocate ", nbytes, " bytes");
    return {address, address, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    TORCH_CHECK(false, "the played device copies by ops alone");
  }
};

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &release, c10::kCPU};
    void* address = host.allocate_pinned(nbytes);
    TORCH_CHECK(address != nullptr, "the played host refused to pin ", nbytes, " bytes");
    return {address, address, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t nbytes) const override {
    default_copy_data(to, from, nbytes);
  }
};

DeviceMemory device_memory;
PinnedMemory pinned_memory;
REGISTER_ALLOCATOR(kPlayed, &device_memory);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPlayed; }
  c10::Device getDevice() const override {
    return {kPlayed, static_cast<c10::DeviceIndex>(current_device)};
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device indexed(c10::Device device) const { return device.has_index() ? device : getDevice(); }
  c10::Stream getStream(c10::Device device) const override {
    const auto one = indexed(device);
    return c10::Stream(c10::Stream::UNSAFE, one, current_stream[one.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, indexed(device));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    current_stream[stream.device_index()] = stream.id();
    return before;
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    const auto number = reinterpret_cast<int64_t>(*event);
    *event = reinterpret_cast<void*>(host.record(number, stream.device_index(), stream.id()));
  }
  void block(void* event, const c10::Stream& stream) const override {
    host.block(reinterpret_cast<int64_t>(event), stream.device_index(), stream.id());
  }
  bool queryEvent(void* event) const override { return host.query(reinterpret_cast<int64_t>(event)) != 0; }
  void synchronizeEvent(void* event) const override { host.synchronize(reinterpret_cast<int64_t>(event), -1); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { host.synchronize(0, device); }
  void synchronizeStream(const c10::Stream& stream) const override { host.synchronize(0, stream.device_index()); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device); }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device;
    current_device = device;
    return static_cast<c10::DeviceIndex>(before);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  at::Device getDeviceFromPtr(void*) const override { return {kPlayed, 0}; }
  bool isPinnedPtr(const void* address) const override { return host.is_pinned(address) != 0; }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(device_memory.allocate(nbytes));
    impl->set_nbytes(nbytes);
  }
};

// The ops that make or reshape tensors without touching an element.

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(kPlayed)));
  return at::detail::empty_generic(size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(at::Device(kPlayed)));
  return at::detail::empty_strided_generic(size, stride, &device_memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  const auto nbytes = at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(), self.storage_offset());
  if (nbytes > self.storage().nbytes()) {
    const c10::DeviceGuard guard(self.device());
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), nbytes);
  }
  impl->set_sizes_contiguous(sizes);
  return self;
}

at::Tensor& set_source(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                       c10::SymIntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  at::native::setStrided(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return self;
}

at::Tensor& set_whole(at::Tensor& self, at::Storage source) {
  const auto size = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_source(self, std::move(source), 0, at::fromIntArrayRefSlow({size}), at::fromIntArrayRefSlow({1}));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("set_.source_Storage", TORCH_FN(set_whole));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source));
}

// Autocast, as on CUDA for the ops that the scenarios use.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(exp, fp32)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}

}  // namespace

extern "C" {

// Called once, before PyTorch's autograd has started its threads: it makes one for each device then.
void played_install(const Host* functions) {
  host = *functions;
  at::RegisterPrivateUse1HooksInterface(new Hooks());
}
void played_uninstall() { host = Host{}; }
// The oldest address that was given back and not asked for, 0 if there is none.
int64_t played_returned() {
  const std::lock_guard<std::mutex> lock(returning);
  if (returned.empty()) return 0;
  const auto address = returned.front();
  returned.erase(returned.begin());
  return address;
}
int played_device() { return current_device; }
void played_set_device(int device) { current_device = device; }
int64_t played_stream(int device) { return current_stream[device]; }
void played_set_stream(int device, int64_t stream) { current_stream[device] = stream; }
}

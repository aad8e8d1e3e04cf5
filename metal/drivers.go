package metal

// Drivers are the kinds of devices of this platform, the best first.
func Drivers() []Driver { return drivers }

// emulatorName is the name of the emulator's one device.
const emulatorName = "CPU emulator"

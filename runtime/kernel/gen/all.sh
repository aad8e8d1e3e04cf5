# Writes the amd64 assembly of the families anew.
set -e
cd "$(dirname "$0")"
write() { # family, folder from here, package
	go run . -family "$1" -out "$2/$1_amd64.s" -stubs "$2/$1_amd64.go" -pkg "$3"
}
for family in int float vector panel amx; do
	write $family .. kernel
done
write encode ../../../quantize quantize

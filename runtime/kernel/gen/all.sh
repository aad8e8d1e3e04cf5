# Writes the amd64 assembly of the families anew.
set -e
cd "$(dirname "$0")"
for family in int float vector panel amx; do
	go run . -family $family -out ../${family}_amd64.s -stubs ../${family}_amd64.go -pkg kernel
done

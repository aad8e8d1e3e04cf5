module hawkmoth

go 1.26

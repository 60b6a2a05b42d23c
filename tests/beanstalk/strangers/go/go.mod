module strangers

go 1.20

require github.com/beanstalkd/go-beanstalk v0.2.0

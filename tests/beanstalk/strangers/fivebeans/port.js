// The suite speaks to port 11300; this leads it to the port that BEANSTALK_PORT names.
const net = require('net');
const create = net.createConnection;
net.createConnection = (port, ...rest) =>
  create(port === 11300 ? Number(process.env.BEANSTALK_PORT) : port, ...rest);
